"""A loop's answer as the relay takes it: a head, and a body that is written while the tokens come."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson

from gateway.loop.counts import LoopCounts
from gateway.loop.shape import Document, Shape
from gateway.loop.writing import Piece, Writing
from gateway.proxy.headers import RawHeaders, first

_DONE = b"data: [DONE]\n\n"


class LoopAnswer:
    """An answer whose beginning has been written. Closing it ends its generation.

    Args:
        headers: Its head.
        beginning: Bytes that are ready.
        rest: Those that follow; None for none.
        writing: Where they come from.

    Attributes:
        status: Always 200; whatever else it might have been is relayed.
    """

    status = 200

    def __init__(
        self,
        *,
        headers: RawHeaders,
        beginning: bytes,
        rest: AsyncIterator[bytes] | None = None,
        writing: Writing,
    ) -> None:
        self.headers = headers
        self._beginning = beginning
        self._rest = rest
        self._writing = writing

    @property
    def counts(self) -> LoopCounts:
        """Counts the answer; complete once the body has been taken to its end."""
        return self._writing.counts

    def header(self, name: bytes) -> str:
        """The header's value; empty without one."""
        return (first(self.headers, name) or b"").decode("latin-1")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it is written.

        Raises:
            BackendError: The target failed.
        """
        yield self._beginning
        if self._rest is not None:
            async for piece in self._rest:
                yield piece

    def close(self) -> None:
        """Stop generating."""
        self._writing.close()


async def streamed(writing: Writing, shape: Shape, *, wants_usage: bool) -> LoopAnswer:
    """The answer as server-sent events, once there is a token. Raises as `Writing.next` does."""
    piece = await writing.next()
    opening = shape.opening()
    beginning = (_event(opening) if opening else b"") + _events(piece, shape, wants_usage=wants_usage)

    async def rest() -> AsyncIterator[bytes]:
        last = piece
        while last.end is None:
            last = await writing.next()
            yield _events(last, shape, wants_usage=wants_usage)

    headers = ((b"content-type", b"text/event-stream; charset=utf-8"),)
    return LoopAnswer(headers=headers, beginning=beginning, rest=rest(), writing=writing)


async def whole(writing: Writing, shape: Shape) -> LoopAnswer:
    """The answer as one document, once it is complete. Raises as `Writing.next` does."""
    texts = []
    end = None
    while end is None:
        piece = await writing.next()
        texts.append(piece.text)
        end = piece.end
    body = orjson.dumps(shape.whole("".join(texts), end))
    headers = ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
    return LoopAnswer(headers=headers, beginning=body, writing=writing)


def _events(piece: Piece, shape: Shape, *, wants_usage: bool) -> bytes:
    """The events for a piece; none while its text is held back."""
    if piece.end is None:
        return _event(shape.chunk(piece.text, None)) if piece.text else b""
    usage = _event(shape.usage_chunk(piece.end)) if wants_usage else b""
    return _event(shape.chunk(piece.text, piece.end)) + usage + _DONE


def _event(document: Document) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"
