"""Who may call the REST routes. Checked before a body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPBearer

_ADMIN = HTTPBearer(auto_error=False, scheme_name="admin token")
_RUNNER = HTTPBearer(auto_error=False, scheme_name="runner token")


def admins_only(check: Callable[[bytes | None], None]) -> list[Dependency]:
    """Dependencies of a router for operators; `check` raises InvalidKey for anyone else."""
    return [Depends(_passing(check)), Depends(_ADMIN)]


def runners_only(check: Callable[[bytes | None], None]) -> list[Dependency]:
    """Dependencies of a router for draft runners; `check` raises InvalidKey for anyone else."""
    return [Depends(_passing(check)), Depends(_RUNNER)]


def _passing(check: Callable[[bytes | None], None]) -> Callable[[Request], Awaitable[None]]:
    # HTTPBearer only tells the OpenAPI page what is needed: its own refusals have another error shape.
    # Asynchronous although it awaits nothing: a plain function would be run in a thread.
    async def guard(request: Request) -> None:
        given = request.headers.get("authorization")
        check(None if given is None else given.encode("latin-1"))

    return guard
