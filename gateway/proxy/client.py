"""The client's side of a request: what it has been sent so far, and errors in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import orjson

from gateway.errors import GatewayError
from gateway.proxy.asgi import Send
from gateway.proxy.headers import REQUEST_ID
from gateway.telemetry.record import AccessRecord


class Client:
    """Sends to the client, and notes in the access record what was sent.

    Args:
        send: ASGI's.
        access: The request's record; status, bytes and first byte are kept here.
        elapsed: Seconds since the request arrived.

    Attributes:
        started: The head has been sent.
        satisfied: All that the client waits for has been sent. Official clients close their connection at
            a stream's `[DONE]`, before the body has ended: they have not left an answer.
    """

    def __init__(self, send: Send, access: AccessRecord, elapsed: Callable[[], float]) -> None:
        self._send = send
        self._access = access
        self._elapsed = elapsed
        self.started = False
        self.satisfied = False

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head."""
        self.started = True
        self._access.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body, at once."""
        if self._access.first_byte_s is None:
            self._access.first_byte_s = self._elapsed()
        self._access.bytes_out += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        """End the body. One that is never ended makes the server cut the connection."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, document: object) -> None:
        """Send a whole JSON answer of our own."""
        await self._answer(200, orjson.dumps(document), ())

    async def refuse(self, error: GatewayError, *, hang_up: bool) -> None:
        """Send an error as the whole answer.

        Args:
            error: What to say.
            hang_up: Close the connection after it, because the request's body is still in it.
        """
        extra = [(name.encode(), value.encode()) for name, value in error.headers]
        if hang_up:
            extra.append((b"connection", b"close"))
        await self._answer(error.status, orjson.dumps(error.body()), extra)

    async def _answer(self, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]]) -> None:
        own = (
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (REQUEST_ID, self._access.request_id.encode()),
        )
        await self.start(status, (*own, *extra))
        await self.write(body)
        await self.finish()
