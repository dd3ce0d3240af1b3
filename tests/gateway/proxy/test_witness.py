from __future__ import annotations

from gateway.proxy.witness import BodyMeter, StreamMeter, Tee

USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2},"metrics":{"a":1}}\n\n'


def test_only_the_first_usage_chunk_is_taken_out() -> None:
    meter = StreamMeter(hides_usage=True, limit=1000, timer=lambda: 0.0)
    assert meter.saw(USAGE + b"data: 1\n\n" + USAGE) == b"data: 1\n\n" + USAGE


def test_usage_on_every_chunk_is_not_added_up() -> None:
    meter = StreamMeter(hides_usage=False, limit=1000, timer=lambda: 0.0)
    for count in (1, 2, 3):
        meter.saw(b'data: {"choices":[{}],"usage":{"completion_tokens":%d}}\n\n' % count)
    meter.saw(b'data: {"choices":[],"usage":null}\n\n')
    assert meter.usage == {"completion_tokens": 3}


def test_a_usage_chunk_without_its_blank_line_is_read_and_taken_out_at_the_end() -> None:
    meter = StreamMeter(hides_usage=True, limit=1000, timer=lambda: 0.0)
    assert meter.saw(b"data: 1\n\n" + USAGE.rstrip()) == b"data: 1\n\n"
    assert meter.rest() == b""
    assert meter.metrics == {"a": 1}


def test_a_last_line_without_its_blank_line_passes_at_the_end() -> None:
    meter = StreamMeter(hides_usage=True, limit=1000, timer=lambda: 0.0)
    assert meter.saw(b"data: [DONE]\n") == b""
    assert meter.rest() == b"data: [DONE]\n"


def test_comments_pass_at_once() -> None:
    assert StreamMeter(hides_usage=True, limit=1000, timer=lambda: 0.0).saw(b": ping\n\n") == b": ping\n\n"


def test_an_event_beyond_the_limit_passes_and_the_rest_is_not_read() -> None:
    meter = StreamMeter(hides_usage=True, limit=10, timer=lambda: 0.0)
    assert meter.saw(b"data: 0123") == b""
    assert meter.saw(b"456789") == b"data: 0123456789"
    assert meter.saw(b"abc\n\n" + USAGE) == b"abc\n\n" + USAGE
    assert meter.rest() == b""
    assert meter.usage is None


def test_a_body_is_read_when_it_is_whole() -> None:
    meter = BodyMeter(1000)
    for piece in (b'{"usage":{"completion', b'_tokens":2},"metrics":[]}'):
        assert meter.saw(piece) == piece
    assert meter.rest() == b""
    assert (meter.usage, meter.metrics) == ({"completion_tokens": 2}, [])


def test_a_copy_beyond_the_limit_is_let_go() -> None:
    tee = Tee(5)
    assert [tee.saw(b"abc"), tee.copy] == [b"abc", b"abc"]
    assert [tee.saw(b"def"), tee.saw(b"g")] == [b"def", b"g"]
    assert (tee.overflown, tee.copy) == (True, b"")


def test_the_time_from_the_first_text_to_the_end_is_taken() -> None:
    seconds = iter([1.0, 1.5, 3.0])
    meter = StreamMeter(hides_usage=False, limit=1000, timer=lambda: next(seconds))
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content": "a"}}]}\n\n'
    end = b'data: {"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
    for event in (b": ping\n\n", role, text, text):
        meter.saw(event)
    assert meter.seconds == 0.5
    for event in (end, USAGE, b"data: [DONE]\n\n"):
        meter.saw(event)
    assert meter.seconds == 2.0


def test_an_answer_of_one_chunk_takes_no_time_that_could_be_measured() -> None:
    meter = StreamMeter(hides_usage=False, limit=1000, timer=lambda: 1.0)
    meter.saw(b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\n')
    assert meter.seconds is None
