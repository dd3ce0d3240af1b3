"""A backend that dies while it answers: an error event, or a cut connection; never a clean `[DONE]`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import openai
import pytest

from gateway.proxy.upstream import Timeouts
from tests.fakes.raw_http import Answer, ask, post
from tests.fakes.upstream import PATIENCE_S, Conversation, Script
from tests.gateway.proxy.harness import policy_with, prod_policy, serving

pytestmark = pytest.mark.slow

STREAM = post(b'{"model":"m1","stream":true}')
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
)
SHORT = Timeouts(idle_s=0.2, first_byte_s=0.2)


def then(end: Callable[[Conversation], object], *pieces: bytes) -> Script:
    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        conversation.chunk(*pieces)
        end(conversation)

    return script


def cut_inside_a_chunk(conversation: Conversation) -> None:
    conversation.send(b"ff\r\ndata: {")
    conversation.close()


DEATHS: dict[str, tuple[Script, str]] = {
    "closed between chunks": (then(Conversation.close, EVENT, EVENT), "backend_broke_off"),
    "closed inside a chunk": (then(cut_inside_a_chunk, EVENT, EVENT), "backend_broke_off"),
    "reset": (then(Conversation.reset, EVENT, EVENT), "backend_broke_off"),
    "silent": (then(Conversation.wait_for_hang_up, EVENT, EVENT), "backend_timeout"),
    "closed inside a line": (then(Conversation.close, EVENT, EVENT, b'data: {"cho'), "backend_broke_off"),
    "closed between lines": (then(Conversation.close, EVENT, EVENT, b"data: {}\n"), "backend_broke_off"),
}
MODES = {"off": policy_with("off"), "shadow": policy_with("shadow"), "prod": prod_policy()}


def last_event(answer: Answer) -> bytes:
    before, _, last = answer.body.rstrip(b"\n").rpartition(b"\n\n")
    assert before
    return last.removeprefix(b"data: ")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("script", "code"), DEATHS.values(), ids=DEATHS.keys())
def test_a_stream_that_dies_ends_with_an_error_event(script: Script, code: str, mode: str) -> None:
    with serving(script, timeouts=SHORT, policy=MODES[mode]) as (up, gateway):
        answer = ask(gateway.port, STREAM)
        record = gateway.records.next_access()
        assert len(up.requests) == 1
    assert answer.status == 200
    assert answer.whole
    assert answer.body.startswith(EVENT)
    error = json.loads(last_event(answer))["error"]
    assert error["code"] == record.ending == code
    assert error["type"] == "upstream_error"
    assert b"[DONE]" not in answer.body


def test_a_half_line_is_ended_before_the_error() -> None:
    with serving(then(Conversation.close, EVENT, b'data: {"cho')) as (_, gateway):
        answer = ask(gateway.port, STREAM)
    assert answer.body.startswith(EVENT + b'data: {"cho\n\ndata: {"error":')


def test_a_half_event_is_ended_before_the_error() -> None:
    with serving(then(Conversation.close, EVENT, b"data: {}\r\n")) as (_, gateway):
        answer = ask(gateway.port, STREAM)
    assert answer.body.startswith(EVENT + b'data: {}\r\n\ndata: {"error":')


def test_no_blank_line_is_put_after_a_whole_event() -> None:
    with serving(then(Conversation.close, b"id: 1\r\ndata: {}\r\n\r\n")) as (_, gateway):
        answer = ask(gateway.port, STREAM)
    assert answer.body.startswith(b'id: 1\r\ndata: {}\r\n\r\ndata: {"error":')


def test_a_stream_that_dies_before_its_first_event_ends_with_an_error_event() -> None:
    with serving(then(Conversation.close)) as (_, gateway):
        answer = ask(gateway.port, STREAM)
    assert answer.body.startswith(b'data: {"error":')


def test_a_connection_that_dies_after_done_is_cut_and_nothing_is_added() -> None:
    with serving(then(Conversation.close, EVENT, b"data: [DONE]\n\n")) as (_, gateway):
        answer = ask(gateway.port, STREAM)
    assert answer.body == EVENT + b"data: [DONE]\n\n"
    assert not answer.whole


@pytest.mark.parametrize(("script", "code"), DEATHS.values(), ids=DEATHS.keys())
def test_the_official_client_raises_on_a_stream_that_dies(script: Script, code: str) -> None:
    with serving(script, timeouts=SHORT) as (_, gateway):
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="sk-TEST-GW", max_retries=0
        )
        with client, pytest.raises((openai.APIError, json.JSONDecodeError)):
            list(client.chat.completions.create(model="m1", messages=[], stream=True))
        assert gateway.records.next_access().ending == code


@pytest.mark.parametrize(
    ("finish", "ending"),
    [('"stop"', "completed"), ("null", "backend_broke_off")],
    ids=["finished", "unfinished"],
)
def test_a_stream_without_done_is_relayed_as_it_is(finish: str, ending: str) -> None:
    text = EVENT + f'data: {{"choices":[{{"delta":{{}},"finish_reason":{finish}}}]}}\n\n'.encode()
    with serving(lambda c: c.stream(text)) as (_, gateway):
        answer = ask(gateway.port, STREAM)
        assert gateway.records.next_access().ending == ending
    assert answer.body == text
    assert answer.whole


def whole_length(conversation: Conversation) -> None:
    conversation.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    conversation.close()


def in_chunks(conversation: Conversation) -> None:
    conversation.start_stream(content_type="application/json")
    conversation.chunk(b"{")
    conversation.close()


def silent(conversation: Conversation) -> None:
    conversation.start_stream(content_type="application/json")
    conversation.chunk(b"{")
    conversation.wait_for_hang_up()


def compressed_stream(conversation: Conversation) -> None:
    conversation.start_stream("Content-Encoding: gzip")
    conversation.chunk(zlib.compress(EVENT, wbits=31)[:9])
    conversation.close()


def stream_of_stated_length(conversation: Conversation) -> None:
    conversation.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 500\r\n\r\n")
    conversation.send(EVENT)
    conversation.close()


@pytest.mark.parametrize(
    "script", [whole_length, in_chunks, silent, compressed_stream, stream_of_stated_length]
)
def test_where_no_event_can_be_added_the_client_is_cut_off(script: Script) -> None:
    with serving(script, timeouts=SHORT) as (up, gateway):
        answer = ask(gateway.port, STREAM)
        assert gateway.records.next_access().ending in ("backend_broke_off", "backend_timeout")
        assert len(up.requests) == 1
    assert answer.status == 200
    assert not answer.whole
    assert b"error" not in answer.body


def test_a_connection_that_fell_silent_is_closed_and_not_used_again() -> None:
    with serving(then(Conversation.wait_for_hang_up, EVENT), timeouts=SHORT) as (up, gateway):
        for _ in range(2):
            ask(gateway.port, STREAM)
        assert all(request.hung_up.wait(PATIENCE_S) for request in up.requests)
        assert [request.connection for request in up.requests] == [0, 1]


def test_a_backend_that_says_nothing_is_a_504_and_is_not_asked_again() -> None:
    with serving(Conversation.wait_for_hang_up, timeouts=SHORT) as (up, gateway):
        answer = ask(gateway.port, STREAM)
        assert gateway.records.next_access().ending == "backend_timeout"
        assert up.requests[0].hung_up.wait(5)
        assert len(up.requests) == 1
    assert answer.status == 504
    assert "ACE_FIRST_BYTE_TIMEOUT_S" in json.loads(answer.body)["error"]["message"]


def test_a_long_answer_lives_as_long_as_bytes_arrive() -> None:
    """It takes several idle timeouts, none of which runs out."""

    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        for _ in range(20):
            conversation.request.hung_up.wait(0.05)
            conversation.chunk(EVENT)
        conversation.chunk(b"data: [DONE]\n\n")
        conversation.end_stream()

    with serving(script, timeouts=Timeouts(idle_s=0.5, first_byte_s=0.5)) as (_, gateway):
        answer = ask(gateway.port, STREAM)
    assert answer.body == EVENT * 20 + b"data: [DONE]\n\n"
