"""Mode shadow: the same relay, and one finished answer offered for replay, however the request ended."""

from __future__ import annotations

import gzip

import pytest

from gateway.fleet.model import BackendState
from gateway.policy.model import Action, Mode
from gateway.proxy.handler import Limits
from gateway.proxy.upstream import Timeouts
from gateway.shadow.answer import FinishedAnswer
from tests.fakes.raw_http import RawClient, ask, post
from tests.fakes.upstream import Conversation, Script
from tests.gateway.proxy.harness import Gateway, backend_at, policy_with, serving

BODY = b'{ "model":"m1", "stream":true, "vllm_xargs":{"a":1} }'
REQUEST = post(BODY, "traceparent: 00-a-b-01", "Accept-Encoding: gzip", "Authorization: Bearer sk-TEST-GW")
TEXT = 'data: {"choices":[{"delta":{"content":"日"}}]}\r\n\r\ndata: [DONE]\r\n\r\n'.encode()
SHADOW = policy_with("shadow")


def offered(gateway: Gateway) -> FinishedAnswer:
    """The only answer offered, once the request has ended."""
    gateway.records.next_access()
    assert not gateway.records.stages
    (answer,) = gateway.records.offered
    return answer


def byte_by_byte(conversation: Conversation) -> None:
    conversation.stream(*(TEXT[i : i + 1] for i in range(len(TEXT))))


def test_request_and_answer_are_relayed_as_they_are_and_copied() -> None:
    with serving(byte_by_byte, policy=SHADOW) as (up, gateway):
        direct, through = ask(up.port, REQUEST), ask(gateway.port, REQUEST)
        assert through.end_to_end == direct.end_to_end
        assert up.requests[1].body == BODY
        assert up.requests[1].values("accept-encoding") == ["gzip"]
        answer = offered(gateway)
    assert (answer.request_body, answer.answer_body) == (BODY, TEXT)
    assert (answer.status, answer.content_type, answer.content_encoding) == (200, "text/event-stream", "")
    assert (answer.complete, answer.policy_revision, answer.traceparent) == (True, "rev1", "00-a-b-01")
    assert (answer.facts.tenant, answer.facts.stream, answer.backend.name) == ("team-a", True, "b1")
    assert (answer.decision.mode, answer.decision.action) == (Mode.SHADOW, Action.WOULD_SPECULATE)
    assert answer.at == 1_700_000_000.0


def test_a_compressed_answer_is_copied_as_it_is_and_named() -> None:
    text = gzip.compress(TEXT)
    with serving(lambda c: c.answer(text, headers=["Content-Encoding: gzip"]), policy=SHADOW) as (_, gateway):
        assert ask(gateway.port, REQUEST).body == text
        answer = offered(gateway)
    assert (answer.answer_body, answer.content_encoding) == (text, "gzip")


EVERYTHING_AT_ONCE = (
    b'data: {"choices":[{"index":0,"delta":{"reasoning":"so","content":"a b c d","tool_calls":[{"index":0}]},'
    b'"logprobs":{"content":[{"token":"a","logprob":0.0}]},"finish_reason":"tool_calls"}]}\n\n'
)


def test_several_fields_in_one_chunk_and_odd_log_probabilities_are_relayed_as_they_are() -> None:
    """BR-B08, BR-B17."""
    request = post(b'{"model":"m1","stream":true,"logprobs":true,"top_logprobs":5}')
    with serving(lambda c: c.stream(EVERYTHING_AT_ONCE), policy=SHADOW) as (up, gateway):
        direct, through = ask(up.port, request), ask(gateway.port, request)
        assert up.requests[1].body == up.requests[0].body
        answer = offered(gateway)
    assert through.end_to_end == direct.end_to_end
    assert through.body == answer.answer_body == EVERYTHING_AT_ONCE


def test_an_answer_over_the_limit_is_relayed_and_not_kept() -> None:
    limits = Limits(copy_bytes=10)
    with serving(byte_by_byte, policy=SHADOW, limits=limits) as (_, gateway):
        assert ask(gateway.port, REQUEST).body == TEXT
        answer = offered(gateway)
    assert (answer.answer_body, answer.complete, answer.too_large) == (b"", False, True)


def test_a_request_outside_the_sample_is_offered_without_its_answer() -> None:
    policy = policy_with("shadow", shadow={"sample": 0.0})
    with serving(byte_by_byte, policy=policy) as (_, gateway):
        assert ask(gateway.port, REQUEST).body == TEXT
        answer = offered(gateway)
    assert (answer.decision.action, answer.decision.reason) == (Action.SKIP, "not_sampled")
    assert (answer.answer_body, answer.complete) == (b"", False)


def broken(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(b"data: 1\n\n")
    conversation.close()


def error(conversation: Conversation) -> None:
    conversation.answer(b'{"error":{}}', status="400 Bad Request")


@pytest.mark.parametrize(
    ("script", "status", "complete"),
    [(broken, 200, False), (error, 400, True), (Conversation.close, 0, False)],
)
def test_a_backend_that_fails_is_offered_too(script: Script, status: int, complete: bool) -> None:
    with serving(script, policy=SHADOW) as (_, gateway):
        ask(gateway.port, REQUEST)
        answer = offered(gateway)
    assert (answer.status, answer.complete) == (status, complete)


def test_a_backend_that_never_answers_is_offered_too() -> None:
    with serving(Conversation.wait_for_hang_up, policy=SHADOW, timeouts=Timeouts(first_byte_s=0.2)) as (
        _,
        gateway,
    ):
        assert ask(gateway.port, REQUEST).status == 504
        assert offered(gateway).status == 0


def test_a_client_that_leaves_is_offered_too() -> None:
    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        conversation.chunk(b"data: 1\n\n")
        conversation.wait_for_hang_up()

    with serving(script, policy=SHADOW) as (_, gateway):
        with RawClient(gateway.port) as client:
            client.send(REQUEST)
            client.read_head()
        answer = offered(gateway)
    assert (answer.status, answer.complete) == (200, False)


def test_no_backend_up_is_offered_too() -> None:
    with Gateway([backend_at("http://127.0.0.1:1", state=BackendState.DOWN)], policy=SHADOW) as gateway:
        assert ask(gateway.port, REQUEST).status == 503
        assert offered(gateway).status == 0


def test_a_refused_request_offers_nothing() -> None:
    with serving(Conversation.answer, policy=SHADOW) as (_, gateway):
        ask(gateway.port, post(b'{"model":"m2"}'))
        gateway.records.next_access()
        assert not gateway.records.offered
