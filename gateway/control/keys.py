"""Routes of API keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.params import Depends as Dependency

from gateway.control.requests import NewKey, json_body, takes_body
from gateway.control.views import IssuedKeyView, KeysView, KeyView
from gateway.keys import KeyRing

NewKeyBody = Annotated[NewKey, Depends(json_body(NewKey))]


def key_routes(keys: KeyRing, guards: list[Dependency]) -> APIRouter:
    """Issue, list and revoke keys."""
    routes = APIRouter(prefix="/admin/v1/keys", tags=["keys"], dependencies=guards)

    @routes.post("", status_code=201, openapi_extra=takes_body(NewKey))
    async def issue_key(body: NewKeyBody, response: Response) -> IssuedKeyView:
        """Make a key for a tenant. It is shown in this answer and never again."""
        issued = await keys.issue(name=body.name, tenant=body.tenant)
        response.headers["cache-control"] = "no-store"
        stored = issued.stored
        return IssuedKeyView(
            id=stored.id, name=stored.name, tenant=stored.tenant, key=issued.secret, prefix=stored.prefix
        )

    @routes.get("")
    async def list_keys() -> KeysView:
        """Every key, revoked ones too, oldest first."""
        return KeysView(keys=[KeyView.of(key) for key in await keys.all()])

    @routes.delete("/{key_id}", status_code=204)
    async def revoke_key(key_id: str) -> Response:
        """Make a key good no longer, in every process within a second."""
        await keys.revoke(key_id)
        return Response(status_code=204)

    return routes
