"""Every failure of the control plane as an answer in OpenAI's error shape; never a traceback."""

from __future__ import annotations

import logging
from functools import partial

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, MalformedRequest, UnknownRoute

logger = logging.getLogger(__name__)


class MethodNotAllowed(MalformedRequest):
    """The path exists, and takes other methods."""

    status, code = 405, "method_not_allowed"


def answer_errors(app: FastAPI, *, routes_are: str) -> None:
    """Have `app` answer every exception in OpenAI's error shape, and say where its routes are named."""
    app.add_exception_handler(GatewayError, _ours)
    app.add_exception_handler(HTTPException, partial(_frameworks, routes_are))
    app.add_exception_handler(Exception, _unexpected)


async def _ours(_request: Request, error: Exception) -> JSONResponse:
    failure = error if isinstance(error, GatewayError) else GatewayError()
    return JSONResponse(failure.body(), status_code=failure.status, headers=dict(failure.headers))


async def _frameworks(routes_are: str, request: Request, error: Exception) -> JSONResponse:
    path = request.url.path[:200]
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        failure = MethodNotAllowed(f"{request.method} is not taken by {path}. Allowed: {allowed}.")
        return JSONResponse(failure.body(), status_code=failure.status, headers={"allow": allowed})
    return await _ours(request, UnknownRoute(f"There is no route {path}. {routes_are}"))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _ours(request, GatewayError("The gateway failed at this request; its log says how."))
