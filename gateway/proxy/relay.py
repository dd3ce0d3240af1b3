"""Copies a backend's answer to the client and says how it ended."""

from __future__ import annotations

import re

import orjson

from gateway.errors import BackendBrokeOff, BackendError
from gateway.fleet.load import Place
from gateway.proxy.client import Client
from gateway.proxy.headers import first, to_client
from gateway.proxy.upstream import Answer
from gateway.proxy.witness import Witness

COMPLETED = "completed"

_TAIL = 4096
"""Enough of a stream's end to hold its last words."""
_FINISHED = re.compile(rb'\[DONE\]|"finish_reason"\s*:\s*"')
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\][\r\n]")
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\n\r\n")
_LINE_ENDS = (b"\n", b"\r")


async def relay(reply: Answer, client: Client, witness: Witness, *, place: Place, request_id: str) -> str:
    """Copy the answer as it arrives, undecoded.

    Args:
        reply: The answer.
        client: Where to.
        witness: Sees every byte, and may hold some back.
        place: Left once the client has what it waits for: its next request may come before the body's end.
        request_id: Goes out as a header.

    Returns:
        `completed`, or the code of what went wrong after the head was sent.
    """
    headers = to_client(reply.headers, request_id, status=reply.status, length_changes=witness.changes_length)
    await client.start(reply.status, headers)
    tail = b""
    try:
        async for chunk in reply.chunks():
            if passed := witness.saw(chunk):
                tail = passed if len(passed) > _TAIL else (tail + passed)[-_TAIL:]
                # Before it is sent: the client may be gone as soon as it has read this.
                client.satisfied = _DONE.search(tail) is not None
                if client.satisfied:
                    place.move(None)
                await client.write(passed)
    except BackendError as error:
        # Where no event can be added the body stays unended, so the server cuts the connection.
        if _takes_events(headers) and b"[DONE]" not in tail:
            await client.write(_error_event(error, after=tail))
            await client.finish()
        return error.code
    if rest := witness.rest():
        tail += rest
        await client.write(rest)
    await client.finish()
    cut_short = reply.status == 200 and _takes_events(headers) and not _FINISHED.search(tail)
    return BackendBrokeOff.code if cut_short else COMPLETED


def _takes_events(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the answer is a readable event stream of no stated length."""
    is_stream = (first(headers, b"content-type") or b"").lower().startswith(b"text/event-stream")
    is_plain = (first(headers, b"content-encoding") or b"identity").lower() == b"identity"
    return is_stream and is_plain and first(headers, b"content-length") is None


def _error_event(error: BackendError, *, after: bytes) -> bytes:
    """The error as an event of its own, whatever line or event was left unfinished.

    At an event's end nothing is put before it: a lone blank line would be an empty event to some clients.
    """
    if not after or after.endswith(_EVENT_ENDS):
        gap = b""
    else:
        gap = b"\n" if after.endswith(_LINE_ENDS) else b"\n\n"
    return gap + b"data: " + orjson.dumps(error.body()) + b"\n\n"
