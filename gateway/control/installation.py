"""What only the gateway's own process can say of itself, for `ace doctor` and `ace support-bundle`."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from typing import Any

from fastapi import APIRouter
from fastapi.params import Depends as Dependency
from pydantic import BaseModel

import gateway
from gateway.control.operation import Readiness
from gateway.control.views import ReadyView
from gateway.settings import Settings
from gateway.store.look import StoreLook
from gateway.telemetry.endpoint import look_at_endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Where the answers come from.

    Attributes:
        look_at_store: One look at the database.
        recent_lines: The newest lines for people of this process.
        env: Its environment, which says where spans go.
        readiness: Whether it can serve requests, and what is wrong with it.
        metrics: The page for Prometheus.
        clock: Unix time.
    """

    settings: Settings
    look_at_store: Callable[[], Awaitable[StoreLook]]
    recent_lines: Callable[[], Sequence[str]]
    env: Mapping[str, str]
    readiness: Readiness
    metrics: Callable[[], bytes]
    clock: Callable[[], float]


class StoreView(BaseModel):
    """What one look at the database found; see StoreLook."""

    label: str
    error: str | None
    revision: str | None
    newest: str
    bytes_used: int | None
    bytes_free: int | None


class SpansView(BaseModel):
    """Where spans go, and why they are not taken there."""

    url: str | None
    error: str | None


class InstallationView(BaseModel):
    """One gateway process. With several workers, the one that answered.

    Attributes:
        settings: As text; of a secret only whether it is set.
        packages: Installed distributions and their versions.
        ready, metrics: What `/readyz` and `/metrics` say, which may be on a port that operators cannot reach.
        now: Unix seconds.
        recent_lines: The newest lines for people, oldest first.
    """

    pid: int
    version: str
    python: str
    platform: str
    packages: dict[str, str]
    settings: dict[str, str | None]
    store: StoreView
    spans: SpansView
    ready: ReadyView
    metrics: str
    now: float
    recent_lines: list[str]


def installation_routes(of: Installation, guards: list[Dependency]) -> APIRouter:
    """Show the installation."""
    routes = APIRouter(prefix="/admin/v1/installation", tags=["operation"], dependencies=guards)

    @routes.get("")
    async def show_installation() -> InstallationView:
        """Versions, settings without secrets, and a fresh look at the store and the OTLP endpoint."""
        return InstallationView(
            **here(),
            pid=os.getpid(),
            settings=of.settings.shown(),
            store=StoreView(**asdict(await of.look_at_store())),
            spans=SpansView(**asdict(await look_at_endpoint(of.env))),
            ready=of.readiness.view(),
            # In a thread: with worker processes the counts are read from files.
            metrics=(await asyncio.to_thread(of.metrics)).decode(),
            now=of.clock(),
            recent_lines=list(of.recent_lines()),
        )

    return routes


def here() -> dict[str, Any]:
    """Versions of this process: its own, Python's, the machine's and every package's."""
    return {
        "version": gateway.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted((found.name, found.version) for found in distributions())),
    }
