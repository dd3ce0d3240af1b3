"""Routes of the registry."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.params import Depends as Dependency

from gateway.control.requests import NewBackend, json_body, takes_body
from gateway.control.views import BackendsView, BackendView
from gateway.fleet.registry import Registry

NewBackendBody = Annotated[NewBackend, Depends(json_body(NewBackend))]


def backend_routes(registry: Registry, guards: list[Dependency]) -> APIRouter:
    """Register, show, probe and remove backends."""
    routes = APIRouter(prefix="/admin/v1/backends", tags=["backends"], dependencies=guards)

    @routes.get("")
    async def list_backends() -> BackendsView:
        """Every registered backend, as probes last saw it."""
        await registry.sync_once()
        return BackendsView(backends=[BackendView.of(b) for b in registry.snapshot().backends])

    @routes.post("", status_code=201, openapi_extra=takes_body(NewBackend))
    async def add_backend(body: NewBackendBody) -> BackendView:
        """Register a backend and probe it. One that cannot be used is kept too, as down."""
        added = await registry.add(
            name=body.name,
            url=body.url,
            kind=body.kind,
            credential=body.credential,
            tokenizer=body.tokenizer,
        )
        return BackendView.of(added)

    @routes.get("/{name}")
    async def show_backend(name: str) -> BackendView:
        """One backend, with its findings and what they allow."""
        await registry.sync_once()
        return BackendView.of(registry.get(name))

    @routes.post("/{name}/probe")
    async def probe_backend(name: str) -> BackendView:
        """Ask a backend every question again."""
        return BackendView.of(await registry.reprobe(name))

    @routes.delete("/{name}", status_code=204)
    async def remove_backend(name: str) -> Response:
        """Forget a backend; requests under way are finished."""
        await registry.remove(name)
        return Response(status_code=204)

    return routes
