"""Routes of draft runners."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.params import Depends as Dependency

from gateway.control.requests import RunnerJoin, json_body, takes_body
from gateway.control.views import RunnersView, RunnerView
from gateway.fleet.runners import Runners
from gateway.store.model import AnnouncedDraftModel

JoinBody = Annotated[RunnerJoin, Depends(json_body(RunnerJoin))]


def runner_routes(runners: Runners, *, admins: list[Dependency], joiners: list[Dependency]) -> APIRouter:
    """Let runners join, and show those that have."""
    routes = APIRouter(tags=["runners"])

    @routes.get("/admin/v1/runners", dependencies=admins)
    async def list_runners() -> RunnersView:
        """Every draft runner seen within a day."""
        await runners.sync_once()
        return RunnersView(runners=[RunnerView.of(r, live=runners.is_live(r)) for r in runners.all()])

    @routes.post("/runner/v1/join", dependencies=joiners, openapi_extra=takes_body(RunnerJoin))
    async def join(body: JoinBody) -> RunnerView:
        """A draft runner says where it is; repeated every few seconds."""
        loaded = body.draft_model
        runner = await runners.join(
            url=body.url,
            node=body.node,
            drafters=body.drafters,
            version=body.version,
            draft_model=AnnouncedDraftModel(**loaded.model_dump()) if loaded else None,
        )
        return RunnerView.of(runner, live=True)

    return routes
