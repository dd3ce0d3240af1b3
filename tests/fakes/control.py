"""A control plane over a real store, with scripts where backends would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI

from gateway.control.app import create_control_app
from gateway.control.installation import Installation
from gateway.control.operation import Readiness, operation_routes
from gateway.drain import Drain
from gateway.fleet.file import FleetHolder
from gateway.fleet.load import Load
from gateway.fleet.registry import Registry
from gateway.fleet.runners import Runners
from gateway.keys import KeyRing, RunnerGate
from gateway.policy.board import OverlayBoard
from gateway.policy.kill_switch import KillSwitch
from gateway.policy.watch import PolicyHolder
from gateway.settings import Settings
from gateway.store.stages import row_of
from gateway.store.store import Store
from gateway.telemetry.record import StageRecord
from tests.fakes.clock import FakeClock
from tests.fakes.probing import ScriptedHealth, ScriptedProbe, examiner_of
from tests.fakes.standings import ScriptedMeter, calibrations_of, standings_of

ADMIN = "ace-admin-for-tests"
RUNNER = "runner-token-for-tests"


@dataclass
class ControlPlane:
    """An application, a client that holds the admin token, and everything behind them."""

    app: FastAPI
    http: httpx.AsyncClient
    parts: dict[str, Any]
    policy_file: Path
    probe: ScriptedProbe
    health: ScriptedHealth
    meter: ScriptedMeter
    clock: FakeClock

    @property
    def store(self) -> Store:
        store: Store = self.parts["store"]
        return store

    @property
    def registry(self) -> Registry:
        registry: Registry = self.parts["registry"]
        return registry

    @property
    def keys(self) -> KeyRing:
        keys: KeyRing = self.parts["keys"]
        return keys

    @property
    def overlays(self) -> OverlayBoard:
        overlays: OverlayBoard = self.parts["overlays"]
        return overlays

    @property
    def policy(self) -> PolicyHolder:
        policy: PolicyHolder = self.parts["policy"]
        return policy

    def client_with(self, **parts: Any) -> httpx.AsyncClient:
        """A client of another application, which differs in some parts."""
        return client_of(create_control_app(**{**self.parts, **parts}))

    async def get(self, path: str, **query: Any) -> Any:
        """The JSON that a route answers with 200."""
        reply = await self.http.get(path, params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def keep(self, *records: StageRecord) -> None:
        """Put stage records into the store."""
        await self.store.stages.add([row_of(record) for record in records])


@asynccontextmanager
async def control_plane(store: Store, policy_file: Path) -> AsyncIterator[ControlPlane]:
    """The control plane of a gateway that has started."""
    clock, probe, health = FakeClock(), ScriptedProbe(), ScriptedHealth()
    registry = Registry(store=store, examiner=examiner_of(probe, health, clock), clock=clock, owner="test")
    keys = KeyRing(store=store, clock=clock, anonymous_allowed=False)
    await keys.open_admin(ADMIN)
    await registry.sync_once()
    runners, load = Runners(store=store, clock=clock), Load()
    policy = PolicyHolder(policy_file, clock)
    overlays = OverlayBoard(
        store=store, switch=KillSwitch(policy_file.with_name("kill"), None, clock), clock=clock
    )
    calibrations, meter = calibrations_of(store, registry, runners, load, clock)
    fleet = FleetHolder(None, declare=registry.declare, refused=registry.refused, clock=clock)
    readiness = Readiness(
        store=store,
        registry=registry,
        keys=keys,
        policy=policy,
        fleet=fleet,
        overlays=overlays,
        drain=Drain(),
    )
    parts: dict[str, Any] = {
        "store": store,
        "registry": registry,
        "runners": runners,
        "keys": keys,
        "runner_gate": RunnerGate(RUNNER),
        "policy": policy,
        "overlays": overlays,
        "fleet": fleet,
        "calibrations": calibrations,
        "standings": standings_of(
            store, runners, policy, load, calibrations, clock, lambda: overlays.current
        ),
        "operation": operation_routes(readiness, page),
        "installation": Installation(
            settings=Settings(data_dir=policy_file.parent, policy_path=policy_file),
            look_at_store=store.look,
            recent_lines=lambda: ["a line"],
            env={},
            readiness=readiness,
            metrics=page,
            clock=clock,
        ),
        "clock": clock,
    }
    await overlays.sync_once()
    app = create_control_app(**parts)
    async with client_of(app) as http:
        yield ControlPlane(app, http, parts, policy_file, probe, health, meter, clock)


def page() -> bytes:
    """The metrics of a gateway that has counted one request."""
    return b"ace_requests_total 1.0\n"


def readiness_parts(control: ControlPlane) -> dict[str, Any]:
    """What a gateway's readiness looks at, all read."""
    looked_at = ("store", "registry", "keys", "policy", "fleet", "overlays")
    return {name: control.parts[name] for name in looked_at}


def operation_of(**parts: Any) -> APIRouter:
    """Its operation routes."""
    return operation_routes(Readiness(**{"drain": Drain(), **parts}), page)


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client that holds the admin token."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://gateway",
        headers={"authorization": f"Bearer {ADMIN}"},
    )


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer in OpenAI's shape, which it must have."""
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert set(reply.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in reply.text
    return error
