"""Routes of overlays and of the kill switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.params import Depends as Dependency

from gateway.control.requests import (
    Lifting,
    NewKill,
    NewOverlay,
    OverlaysWanted,
    json_body,
    query_of,
    takes_body,
    takes_query,
)
from gateway.control.views import KillView, OverlaysView, OverlayView, SwitchView
from gateway.policy.board import OverlayBoard
from gateway.policy.overlays import OverlayKind, Scope

KillBody = Annotated[NewKill, Depends(json_body(NewKill))]
OverlayBody = Annotated[NewOverlay, Depends(json_body(NewOverlay))]
Wanted = Annotated[OverlaysWanted, Depends(query_of(OverlaysWanted))]
LiftQuery = Annotated[Lifting, Depends(query_of(Lifting))]


def overlay_routes(board: OverlayBoard, clock: Callable[[], float], guards: list[Dependency]) -> APIRouter:
    """Put overlays in force, show them, and lift them; a kill has routes of its own besides."""
    routes = APIRouter(prefix="/admin/v1", tags=["overlays"], dependencies=guards)

    @routes.get("/overlays", openapi_extra=takes_query(OverlaysWanted))
    async def list_overlays(wanted: Wanted) -> OverlaysView:
        """Those in force here, kills of the file switch among them; with `all` the newest ever stored."""
        found = await board.newest(wanted.limit) if wanted.all else board.current.known
        shown = [OverlayView.of(overlay, clock()) for overlay in found]
        return OverlaysView(
            overlays=shown if wanted.all else [view for view in shown if view.holds],
            read=board.current.read,
            switch=SwitchView.of(board.switch),
        )

    @routes.post("/overlays", status_code=201, openapi_extra=takes_body(NewOverlay))
    async def add_overlay(body: OverlayBody) -> OverlayView:
        """Take something away from what the policy allows."""
        added = await board.add(
            body.kind,
            Scope(**body.scope.model_dump()),
            value=body.value,
            author=body.author,
            reason=body.reason,
            lasts_s=body.lasts,
        )
        return OverlayView.of(added, clock())

    @routes.delete("/overlays/{overlay_id}", status_code=204, openapi_extra=takes_query(Lifting))
    async def lift_overlay(overlay_id: str, lifting: LiftQuery) -> Response:
        """End an overlay, in every process within a second. It stays in the history."""
        await board.lift(overlay_id, by=lifting.author)
        return Response(status_code=204)

    @routes.get("/kill")
    async def show_kill() -> KillView:
        """What is killed here now, and by what."""
        return _kill_view(board, clock())

    @routes.post("/kill", status_code=201, openapi_extra=takes_body(NewKill))
    async def kill(body: KillBody) -> OverlayView:
        """Stop all speculation and replay, or those of one tenant, model or backend, within two seconds."""
        killed = await board.add(
            OverlayKind.KILL,
            Scope(tenant=body.tenant, model=body.model, backend=body.backend),
            author=body.author,
            reason=body.reason,
            lasts_s=body.lasts,
        )
        return OverlayView.of(killed, clock())

    @routes.delete("/kill", openapi_extra=takes_query(Lifting))
    async def lift_kills(lifting: LiftQuery) -> KillView:
        """End every kill in the store. What the file or ACE_KILL says goes on, and is in the answer."""
        await board.lift_kills(by=lifting.author)
        return _kill_view(board, clock())

    return routes


def _kill_view(board: OverlayBoard, at: float) -> KillView:
    kills = board.current.kills(at)
    return KillView(
        active=bool(kills),
        kills=[OverlayView.of(kill, at) for kill in kills],
        read=board.current.read,
        switch=SwitchView.of(board.switch),
    )
