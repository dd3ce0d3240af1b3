"""What is learnt from an answer while it passes to the client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Protocol

from gateway.evidence.sse import SseEvent, SseParser
from gateway.policy.model import Action, Decision
from gateway.proxy.json_text import read_json
from gateway.proxy.upstream import Answer

_SAYS = re.compile(rb'"(?:content|text)"\s*:\s*"[^"]|"finish_reason"\s*:\s*"')
"""A chunk that has text, or ends the answer."""


class Witness(Protocol):
    """Sees an answer pass."""

    @property
    def changes_length(self) -> bool:
        """Whether the client may get fewer bytes than arrive."""

    def saw(self, chunk: bytes) -> bytes:
        """Take what arrived; give what the client is to get now."""

    def rest(self) -> bytes:
        """The body has ended by itself; give what was held back."""


class Bystander:
    """Learns nothing."""

    changes_length = False

    def saw(self, chunk: bytes) -> bytes:
        """The chunk."""
        return chunk

    def rest(self) -> bytes:
        """Nothing was held back."""
        return b""


class Tee(Bystander):
    """Keeps a copy of the body, up to a limit.

    Attributes:
        overflown: The body is larger; the copy is empty then.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self.overflown = False

    def saw(self, chunk: bytes) -> bytes:
        """The chunk, copied."""
        self._size += len(chunk)
        if self._size > self._limit:
            self.overflown = True
            self._pieces.clear()
        else:
            self._pieces.append(chunk)
        return chunk

    @property
    def copy(self) -> bytes:
        """What has passed so far."""
        return b"".join(self._pieces)


class BodyMeter(Tee):
    """Reads the numbers of an answer that is one JSON document.

    Attributes:
        usage: Whatever JSON the answer has there; None while it has not come. metrics: the same.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.usage: object = None
        self.metrics: object = None

    def rest(self) -> bytes:
        """Nothing was held back; now the document is whole."""
        try:
            document = read_json(self.copy)
        except json.JSONDecodeError:
            document = None
        if isinstance(document, dict):
            self.usage, self.metrics = document.get("usage"), document.get("metrics")
        return b""


class StreamMeter:
    """Reads the numbers of an event stream, and can take out the usage chunk that we asked for.

    Args:
        hides_usage: Take it out. The client then gets whole events; an event that the stream leaves
            unfinished when it breaks off is not passed on.
        timer: Seconds from any fixed moment.
        limit: Bytes of one event that are held at most; beyond it everything passes as it comes.

    Attributes:
        usage: Whatever JSON came last; None while none has come. metrics: the same.
        seconds: From the first chunk with text to the last with text or the answer's end; None before both.
    """

    def __init__(self, *, hides_usage: bool, limit: int, timer: Callable[[], float]) -> None:
        self.changes_length = hides_usage
        self._limit = limit
        self._parser: SseParser | None = SseParser()
        self._hides = hides_usage
        self._timer = timer
        self._first_at: float | None = None
        self.usage: object = None
        self.metrics: object = None
        self.seconds: float | None = None

    def saw(self, chunk: bytes) -> bytes:
        """The chunk; when hiding, the events that it completes."""
        if self._parser is None:
            return chunk
        passed = b"".join(event.raw for event in self._parser.feed(chunk) if not self._takes_out(event))
        if self._parser.pending > self._limit:
            passed += self._give_up()
        return passed if self.changes_length else chunk

    def rest(self) -> bytes:
        """What follows the last blank line."""
        event = self._parser.finish() if self._parser else None
        if event is None or self._takes_out(event) or not self.changes_length:
            return b""
        return event.raw

    def _note_time(self) -> None:
        now = self._timer()
        if self._first_at is None:
            self._first_at = now
        else:
            self.seconds = now - self._first_at

    def _give_up(self) -> bytes:
        held = self._parser.finish() if self._parser else None
        self._parser = None
        return held.raw if held else b""

    def _takes_out(self, event: SseEvent) -> bool:
        """Note the event's numbers. True for the first chunk that has usage and no choices, when hiding."""
        if event.data and _SAYS.search(event.data):
            self._note_time()
        if not event.data or b'"usage"' not in event.data:
            return False
        try:
            chunk = read_json(event.data)
        except json.JSONDecodeError:
            return False
        if not isinstance(chunk, dict) or chunk.get("usage") is None:
            return False
        self.usage = chunk["usage"]
        self.metrics = chunk.get("metrics", self.metrics)
        if not self._hides or chunk.get("choices") != []:
            return False
        self._hides = False
        return True


def witness_for(
    decision: Decision, reply: Answer, *, hides_usage: bool, limit: int, timer: Callable[[], float]
) -> Witness:
    """The witness that an action needs for this answer."""
    if decision.action is Action.WOULD_SPECULATE:
        return Tee(limit)
    if decision.action not in (Action.SPECULATE, Action.CONTROL) or reply.header(b"content-encoding"):
        return Bystander()
    if reply.header(b"content-type").lower().startswith("text/event-stream"):
        return StreamMeter(hides_usage=hides_usage, limit=limit, timer=timer)
    return BodyMeter(limit)
