"""Routes for whatever runs the gateway: is it alive, is it ready, what has it counted. No key needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.control.policy import PolicyInForce
from gateway.control.views import ReadyView
from gateway.drain import Drain
from gateway.fleet.file import FleetHolder
from gateway.fleet.registry import Registry
from gateway.keys import KeyRing
from gateway.policy.board import OverlayBoard
from gateway.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether this process can serve requests, and what is wrong with it."""

    store: Store
    registry: Registry
    keys: KeyRing
    policy: PolicyInForce
    overlays: OverlayBoard
    drain: Drain
    fleet: FleetHolder

    def reasons(self) -> Iterator[str]:
        """What is still missing, or that the end is near. A store that goes down later takes nothing away."""
        if self.drain.begun:
            yield "this process is stopping"
        if not self.store.migrated:
            yield "the store's tables have not been brought to the newest revision yet"
        if not self.registry.loaded:
            yield "the backends have not been read from the store yet"
        if not self.keys.loaded:
            yield "the keys have not been read from the store yet"

    def warnings(self) -> Iterator[str]:
        """What is wrong and does not keep requests from being served."""
        if self.registry.store_error:
            yield self.registry.store_error
        if self.policy.error:
            yield self.policy.error
        if not self.overlays.current.read:
            yield "the overlays have not been read from the store yet, so nothing is speculated or replayed"
        if self.overlays.switch.error:
            yield f"kill switch: {self.overlays.switch.error}"
        if self.fleet.error:
            yield self.fleet.error
        for backend in self.registry.all():
            # Anybody may ask this, so where it is connected to is left out.
            if any(backend.warnings()):
                yield f"backend {backend.name} needs attention: see `ace backends show {backend.name}`"

    def view(self) -> ReadyView:
        """Both, as they are shown."""
        reasons = list(self.reasons())
        return ReadyView(ready=not reasons, reasons=reasons, warnings=list(self.warnings()))


def operation_routes(readiness: Readiness, metrics: Callable[[], bytes]) -> APIRouter:
    """`/healthz`, `/readyz`, `/metrics`."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/healthz")
    async def alive() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @routes.get("/readyz")
    async def ready(response: Response) -> ReadyView:
        """Whether requests may be sent here; 503 with the reasons while they may not."""
        shown = readiness.view()
        response.status_code = 200 if shown.ready else 503
        return shown

    @routes.get("/metrics")
    def show_metrics() -> Response:
        """What has been counted, for Prometheus."""
        # Not asynchronous, so run in a thread: with worker processes the counts are read from files.
        return Response(metrics(), headers={"content-type": CONTENT_TYPE_LATEST})

    return routes
