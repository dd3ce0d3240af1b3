"""Cancels the block it encloses when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gateway.proxy.asgi import Receive


class ClientLeft(Exception):
    """The client closed its connection: there is nobody to answer."""


@contextlib.asynccontextmanager
async def until_client_leaves(receive: Receive) -> AsyncIterator[None]:
    """Cancel the enclosed block as soon as the client disconnects. The body must have been read.

    Raises:
        ClientLeft: in place of that cancellation.
    """
    block = asyncio.current_task()
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        if block is not None:
            block.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        # A cancellation that is not the watcher's own (a server shutting down) goes on upwards.
        if not left or (block is not None and block.uncancel() > 0):
            raise
        raise ClientLeft from None
    finally:
        watcher.cancel()
