from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.sse import SseEvent, SseParser

EVENTS = [b"one", b"two", b"[DONE]"]
SPELLINGS = {
    "LF": b"data: one\n\ndata: two\n\ndata: [DONE]\n\n",
    "CRLF": b"data: one\r\n\r\ndata: two\r\n\r\ndata: [DONE]\r\n\r\n",
    "CR": b"data: one\r\rdata: two\r\rdata: [DONE]\r\r",
    "no space": b"data:one\n\ndata:two\n\ndata:[DONE]\n\n",
}


def parse(pieces: Iterable[bytes]) -> list[SseEvent]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    rest = parser.finish()
    return events + ([rest] if rest else [])


def data_of(events: Iterable[SseEvent]) -> list[bytes]:
    return [event.data for event in events if event.data is not None]


def split(text: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_legal_spelling_gives_the_same_events(spelling: str) -> None:
    text = SPELLINGS[spelling]
    assert data_of(parse([text])) == EVENTS
    assert data_of(parse(text[i : i + 1] for i in range(len(text)))) == EVENTS


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_event_is_returned_by_the_chunk_that_completes_it(spelling: str) -> None:
    parser = SseParser()
    pieces = split(SPELLINGS[spelling], _ends(SPELLINGS[spelling]))
    seen = [data_of(parser.feed(piece)) for piece in pieces]
    assert seen == [[event] for event in EVENTS]
    assert parser.pending == 0


def _ends(text: bytes) -> list[int]:
    return [text.index(b"data", 1), text.index(b"data", text.index(b"two"))]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_leaving_one_event_out_removes_exactly_its_bytes(spelling: str) -> None:
    text = SPELLINGS[spelling]
    first, second = _ends(text)
    for size in (1, 2, 3, len(text)):
        events = parse(text[i : i + size] for i in range(0, len(text), size))
        kept = b"".join(event.raw for event in events if event.data != b"two")
        assert kept == text[:first] + text[second:]


@given(
    st.lists(
        st.sampled_from([b"data: a", b"data:", b"data: \xc3", b"id: 1", b": hi", b"\n", b"\r", b"\r\n"])
    ),
    st.lists(st.integers(0, 200)),
)
def test_no_split_loses_a_byte_or_changes_the_data(parts: list[bytes], cuts: list[int]) -> None:
    text = b"".join(parts)
    events = parse(split(text, cuts))
    assert b"".join(event.raw for event in events) == text
    assert data_of(events) == data_of(parse([text])) == _plainly(text)


def _plainly(text: bytes) -> list[bytes]:
    """The same by the letter of the standard, over the whole text."""
    found, data = [], []
    for line in [*text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), b""]:
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
        if not line and data:
            found.append(b"\n".join(data))
            data = []
    return found


def test_several_data_lines_are_one_event() -> None:
    assert data_of(parse([b"data: {\ndata: }\n\n"])) == [b"{\n}"]


def test_a_comment_is_an_event_without_data() -> None:
    assert parse([b": keep-alive\n\n"]) == [SseEvent(raw=b": keep-alive\n\n", data=None)]


def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    assert data_of(parse([b"\xef\xbb\xbfdata: a\n\n"])) == [b"a"]


def test_a_stream_without_a_last_blank_line_still_gives_its_last_event() -> None:
    assert data_of(parse([b"data: a\n\ndata: [DONE]"])) == [b"a", b"[DONE]"]


def test_bytes_held_back_are_counted() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b") != []
    assert parser.pending == len(b"data: b")
