"""Routes of the registry."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.params import Depends as Dependency

from gateway.control.requests import json_body, takes_body
from gateway.control.views import BackendsView, BackendView
from gateway.evidence.calibrations import Calibrations
from gateway.fleet.declared import NewBackend, declaration_of
from gateway.fleet.model import Registered
from gateway.fleet.registry import Registry

NewBackendBody = Annotated[NewBackend, Depends(json_body(NewBackend))]


def backend_routes(registry: Registry, calibrations: Calibrations, guards: list[Dependency]) -> APIRouter:
    """Register, show, probe, calibrate and remove backends."""
    routes = APIRouter(prefix="/admin/v1/backends", tags=["backends"], dependencies=guards)

    def shown(backend: Registered) -> BackendView:
        return BackendView.of(backend, calibrations.of(backend.name))

    @routes.get("")
    async def list_backends() -> BackendsView:
        """Every registered backend, as probes last saw it."""
        await registry.sync_once()
        return BackendsView(backends=[shown(backend) for backend in registry.all()])

    @routes.post("", status_code=201, openapi_extra=takes_body(NewBackend))
    async def add_backend(body: NewBackendBody) -> BackendView:
        """Register a backend and probe it. One that cannot be used is kept too, as down."""
        return shown(await registry.add(declaration_of(body)))

    @routes.get("/{name}")
    async def show_backend(name: str) -> BackendView:
        """One backend, with its findings and what they allow."""
        await registry.sync_once()
        return shown(registry.get(name))

    @routes.post("/{name}/probe")
    async def probe_backend(name: str) -> BackendView:
        """Ask a backend every question again."""
        return shown(await registry.reprobe(name))

    @routes.post("/{name}/calibrate")
    async def calibrate_backend(name: str) -> BackendView:
        """Time what a step of the gateway's loop costs on a backend, at the load that it has now."""
        await registry.sync_once()
        return shown(await calibrations.calibrate(name))

    @routes.delete("/{name}", status_code=204)
    async def remove_backend(name: str) -> Response:
        """Forget a backend; requests under way are finished."""
        await registry.remove(name)
        return Response(status_code=204)

    return routes
