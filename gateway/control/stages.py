"""Routes of what requests left behind."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.params import Depends as Dependency

from gateway.control.requests import StagesWanted, query_of, takes_query
from gateway.control.summary import summary_of
from gateway.control.views import StagesView
from gateway.store.model import StageQuery
from gateway.store.store import Store

StagesQuery = Annotated[StagesWanted, Depends(query_of(StagesWanted))]


def stage_routes(store: Store, guards: list[Dependency]) -> APIRouter:
    """Show stage records and their summary."""
    routes = APIRouter(prefix="/admin/v1", tags=["stages"], dependencies=guards)

    @routes.get("/stages", openapi_extra=takes_query(StagesWanted))
    async def list_stages(query: StagesQuery) -> StagesView:
        """Stage records of shadow and prod requests, newest first."""
        wanted = StageQuery(**query.model_dump(mode="json"))
        return StagesView(stages=await store.stages.find(wanted))

    @routes.get("/summary")
    async def show_summary() -> dict[str, Any]:
        """What the stage records add up to, by everything that a number may be compared by."""
        return await summary_of(store)

    return routes
