"""The small JSON calls that the gateway makes of a backend on its own account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.proxy.upstream import Call, Reply

_HEADERS = (
    ("content-type", "application/json"),
    ("accept", "application/json"),
    ("accept-encoding", "identity"),
)


def json_call(path: str, payload: Mapping[str, Any]) -> Call:
    """A POST of `payload` to `path`, below the backend's URL."""
    return Call(method="POST", target=path, headers=_HEADERS, body=orjson.dumps(payload))


async def read_object(reply: Reply, *, limit: int) -> dict[str, Any] | None:
    """The JSON object that is the answer's body; None for any other body, and for one beyond `limit` bytes.

    Raises:
        BackendError: The answer ended before its time.
    """
    body = bytearray()
    async for chunk in reply.chunks():
        body += chunk
        if len(body) > limit:
            return None
    try:
        found = orjson.loads(bytes(body))
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def ids_in(value: object) -> tuple[int, ...] | None:
    """The token ids of a JSON list; None for anything else."""
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        return None
    return tuple(value)
