"""Server-sent events, parsed as they arrive and without losing a byte."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One block of a stream, up to and with the blank line that ends it.

    Attributes:
        raw: Its bytes as they arrived. Leaving out one event's `raw` removes exactly that event.
        data: Its `data` lines, joined by LF; None for a block without any (a comment, a lone blank line).
    """

    raw: bytes
    data: bytes | None


class SseParser:
    """Cuts a byte stream into events, whatever the chunks and line ends (LF, CRLF, CR).

    Promises: the `raw` of all events, in order, is the input, byte for byte; an event is returned
    by the `feed` that completes it; the data seen does not depend on how the input was split.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at_start = True
        self._line_start = 0
        self._scanned = 0
        self._ends_in_cr = False
        self._data: list[bytes] = []

    @property
    def pending(self) -> int:
        """Bytes held back because the event they belong to is not complete."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they complete."""
        self._buffer += chunk
        events: list[SseEvent] = []
        while end := self._next_line_end():
            line = bytes(self._buffer[self._line_start : end.start()])
            self._line_start = self._scanned = end.end()
            if line:
                self._ends_in_cr = end.group() == b"\r"
                self._take_line(line)
            else:
                events.append(self._take_event())
        return events

    def finish(self) -> SseEvent | None:
        """The bytes after the last blank line, as the event that the end of the stream makes of them."""
        if not self._buffer:
            return None
        tail = bytes(self._buffer[self._line_start :]).removesuffix(b"\r")
        if tail:
            self._take_line(tail)
        self._line_start = len(self._buffer)
        return self._take_event()

    def _next_line_end(self) -> re.Match[bytes] | None:
        found = _LINE_END.search(self._buffer, self._scanned)
        if found is None:
            self._scanned = len(self._buffer)
            return None
        half_crlf = found.group() == b"\r" and found.end() == len(self._buffer)
        if half_crlf and not (self._ends_in_cr and found.start() == self._line_start):
            # Waiting for the LF keeps an event in one piece. Where lines end in CR alone there is
            # none to wait for, and the event must not be late by one.
            self._scanned = found.start()
            return None
        return found

    def _take_line(self, line: bytes) -> None:
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))

    def _take_event(self) -> SseEvent:
        event = SseEvent(
            raw=bytes(self._buffer[: self._line_start]),
            data=b"\n".join(self._data) if self._data else None,
        )
        del self._buffer[: self._line_start]
        self._line_start = self._scanned = 0
        self._ends_in_cr = False
        self._data = []
        return event
