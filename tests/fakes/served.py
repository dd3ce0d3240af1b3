"""Runs an ASGI app as a real server on a real socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn


@contextlib.contextmanager
def served(app: Any, *, port: int = 0) -> Iterator[str]:
    """Serve `app` on loopback for the enclosed block; gives its base URL."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()
