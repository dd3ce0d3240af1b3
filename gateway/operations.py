"""The operations port: a server of its own beside the main one, for health, readiness and metrics."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from gateway.proxy.asgi import App

_LAST_ANSWERS_S = 1


@asynccontextmanager
async def serving(app: App, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on a bound socket for the enclosed block, which catches every signal itself.

    Raises:
        OSError: Nothing can listen on the socket.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Not `serve`: that takes the process's signals for itself.
    await server.startup(sockets=[listener])
    try:
        yield
    finally:
        await server.shutdown(sockets=[listener])
