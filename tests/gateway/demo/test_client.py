import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from gateway.demo.client import ChatClient, read_answer, read_text
from gateway.demo.failure import DemoFailed
from tests.fakes.upstream import Conversation, Upstream

FIRST = {
    "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [11]}],
    "prompt_token_ids": [1, 2, 3],
}
SECOND = {"choices": [{"index": 0, "delta": {"content": "bc"}, "token_ids": [12, 13]}]}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
    "metrics": {"generation_time_ms": 40.0, "mean_itl_ms": 20.0},
}


def events(*chunks: dict[str, Any]) -> list[bytes]:
    whole = [{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m1"} | c for c in chunks]
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in whole]


@contextmanager
def asking(upstream: Upstream) -> Iterator[ChatClient]:
    with upstream, closing(ChatClient(url=upstream.url, key="k", model="m1")) as client:
        yield client


def test_an_answer_is_put_together_from_its_chunks() -> None:
    answer = read_answer("r1", [FIRST, SECOND, USAGE])

    assert (answer.prompt_ids, answer.ids) == ((1, 2, 3), (11, 12, 13))
    assert answer.text == "abc"
    assert answer.speed == pytest.approx((2, 0.04))


def test_an_answer_without_ids_is_its_text() -> None:
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "bc", None)]

    answer = read_text("r1", [*chunks, USAGE | {"metrics": None}])

    assert (answer.text, answer.ids, answer.decode_seconds) == ("abc", (), 0.0)


def test_an_answer_without_its_usage_is_refused() -> None:
    with pytest.raises(DemoFailed, match="r1 came without its usage"):
        read_text("r1", [FIRST])


@pytest.mark.parametrize(
    "chunks", [[], [FIRST, SECOND], [FIRST, USAGE], [FIRST, SECOND, USAGE | {"metrics": None}]]
)
def test_an_answer_that_cannot_be_measured_is_refused(chunks: list[dict[str, Any]]) -> None:
    with pytest.raises(DemoFailed, match="r1 cannot be measured"):
        read_answer("r1", chunks)


def test_a_request_is_greedy_and_names_its_workload_and_id() -> None:
    upstream = Upstream(lambda talk: talk.stream(*events(FIRST, SECOND, USAGE), b"data: [DONE]\n\n"))
    with asking(upstream) as client:
        answer = client.ask(
            "hello",
            request_id="r1",
            workload="code",
            max_tokens=9,
            extra_body={"vllm_xargs": {"ace_mode": "off"}},
        )

    assert answer.ids == (11, 12, 13)
    (request,) = upstream.requests
    assert request.target == "/v1/chat/completions"
    assert request.values("authorization") == ["Bearer k"]
    assert (request.values("x-request-id"), request.values("x-ace-workload")) == (["r1"], ["code"])
    assert json.loads(request.body) == {
        "model": "m1",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "vllm_xargs": {"ace_mode": "off"},
    }


def test_a_request_can_be_left_without_a_field_that_openai_does_not_have() -> None:
    upstream = Upstream(lambda talk: talk.stream(*events(FIRST, SECOND, USAGE), b"data: [DONE]\n\n"))
    with asking(upstream) as client:
        answer = client.ask("hello", request_id="r1", workload="code", max_tokens=9, plain_fields=True)

    assert answer.text == "abc"
    assert set(json.loads(upstream.requests[0].body)) == {
        *("model", "messages", "temperature", "max_tokens", "stream", "stream_options")
    }


def test_a_refused_request_says_which_and_why() -> None:
    body = b'{"error": {"message": "no such model"}}'
    with (
        asking(Upstream(lambda talk: talk.answer(body, status="404 Not Found"))) as client,
        pytest.raises(DemoFailed, match=r"r1 was not answered: .*no such model"),
    ):
        client.ask("hello", request_id="r1", workload="chat", max_tokens=9)


def test_a_stream_that_ends_in_an_error_event_is_no_answer() -> None:
    def script(talk: Conversation) -> None:
        talk.stream(*events(FIRST), b'data: {"error": {"message": "the backend broke off"}}\n\n')

    with (
        asking(Upstream(script)) as client,
        pytest.raises(DemoFailed, match=r"r1 broke off: .*the backend broke off"),
    ):
        client.ask("hello", request_id="r1", workload="chat", max_tokens=9)
