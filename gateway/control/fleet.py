"""Routes of the fleet file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.params import Depends as Dependency

from gateway.control.requests import json_body, takes_body
from gateway.control.views import FleetDifferenceView, FleetFileView
from gateway.fleet.declared import declaration_of
from gateway.fleet.file import Fleet, FleetHolder
from gateway.fleet.registry import Registry

FleetBody = Annotated[Fleet, Depends(json_body(Fleet))]


def fleet_routes(registry: Registry, holder: FleetHolder, guards: list[Dependency]) -> APIRouter:
    """Show what the fleet file declares, and what another would change."""
    routes = APIRouter(prefix="/admin/v1/fleet", tags=["fleet"], dependencies=guards)

    @routes.get("")
    async def show_fleet() -> FleetFileView:
        """The fleet file in force, and why a newer one is not."""
        await registry.sync_once()
        loaded = holder.current
        return FleetFileView(
            path=loaded.source if loaded else None,
            revision=loaded.revision if loaded else None,
            loaded_at=loaded.loaded_at if loaded else None,
            error=holder.error,
            backends=[backend.name for backend in registry.all() if backend.declared_by],
        )

    @routes.post("/diff", openapi_extra=takes_body(Fleet))
    async def diff_fleet(body: FleetBody) -> FleetDifferenceView:
        """What would change if the fleet file held this; nothing is changed."""
        await registry.sync_once()
        wanted = registry.would_change([declaration_of(given) for given in body.backends])
        return FleetDifferenceView.of(wanted)

    return routes
