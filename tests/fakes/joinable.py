"""A gateway of which only the route that runners join by exists."""

from __future__ import annotations

import json
import queue
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Join:
    """One announcement, as it arrived."""

    path: str
    authorization: str
    body: dict[str, Any]


class JoinableGateway:
    """Raw ASGI app that keeps what runners announce, and answers `status`."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.joins: queue.Queue[Join] = queue.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        headers = dict(scope["headers"])
        self.joins.put(Join(scope["path"], headers[b"authorization"].decode(), json.loads(body)))
        await send(
            {"type": "http.response.start", "status": self.status, "headers": [(b"content-length", b"2")]}
        )
        await send({"type": "http.response.body", "body": b"{}"})
