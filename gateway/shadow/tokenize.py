"""Token ids from a backend's own `/tokenize`, over the data plane's connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.errors import BackendError
from gateway.fleet.model import Backend
from gateway.proxy.upstream import BackendPool, Call, Reply

TIMEOUT_S = 10.0
"""Tokenizing takes milliseconds; a backend that needs longer has other work to do."""

MAX_ANSWER_BYTES = 4 * 1024 * 1024

_HEADERS = (
    ("content-type", "application/json"),
    ("accept", "application/json"),
    ("accept-encoding", "identity"),
)
_SAYS_NOTHING = frozenset({401, 403, 408, 429})
"""Statuses that are about this call, not about what the backend can do."""


class BackendTokenizer:
    """Asks `/tokenize` in vLLM's shape.

    Args:
        pool: Connections to backends; adds each backend's own key.
    """

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool

    async def __call__(self, backend: Backend, payload: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The ids for `payload`; None when the backend has no such route, refuses, or answers otherwise.

        Raises:
            BackendError: It could not be asked, or failed.
        """
        call = Call(method="POST", target="/tokenize", headers=_HEADERS, body=orjson.dumps(payload))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._pool.open(backend, call)
                try:
                    return await self._ids(backend, reply)
                finally:
                    reply.close()
        except TimeoutError:
            raise BackendError(f"Backend {backend.name!r} gave no token ids in {TIMEOUT_S:g} s.") from None

    async def _ids(self, backend: Backend, reply: Reply) -> tuple[int, ...] | None:
        if reply.status >= 500 or reply.status in _SAYS_NOTHING:
            raise BackendError(f"Backend {backend.name!r} answered HTTP {reply.status} to /tokenize.")
        if reply.status != 200:
            return None
        body = bytearray()
        async for chunk in reply.chunks():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                return None
        return _read_ids(bytes(body))


def _read_ids(body: bytes) -> tuple[int, ...] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(isinstance(token, int) and token >= 0 for token in ids):
        return None
    return tuple(ids)
