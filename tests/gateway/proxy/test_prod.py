"""Mode prod: the engine is told, its numbers are read, and the client sees what it would have seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway.evidence.multiplier import MINIMUM_SAMPLE
from gateway.policy.blocks import in_control_block
from gateway.policy.model import Control
from gateway.proxy.upstream import Timeouts
from gateway.telemetry.record import StageRecord
from tests.fakes.raw_http import RawClient, ask, post
from tests.fakes.upstream import Conversation, Script
from tests.gateway.proxy.harness import Gateway, policy_with, prod_policy, serving

COUNTS = {
    "num_spec_steps": 4,
    "num_draft_tokens": 16,
    "num_accepted_draft_tokens": 6,
    "acceptance_histogram": [1, 1, 1, 1, 0, 0],
    "num_spec_tokens": 5,
    "profile": "embedded",
    "method": "ngram",
}
USAGE = {"prompt_tokens": 7, "completion_tokens": 21, "total_tokens": 28}


def metrics(counts: object = COUNTS, **others: object) -> dict[str, object]:
    return {
        "num_passes": 14,
        "mean_itl_ms": 10.0,
        "generation_time_ms": 200.0,
        "speculative_decoding": counts,
    } | others


def chunk(**fields: object) -> bytes:
    return json.dumps({"id": "c", "object": "chat.completion.chunk", **fields}, ensure_ascii=False).encode()


TEXT_CHUNKS = [chunk(choices=[{"index": 0, "delta": {"content": text}}]) for text in ("日本", "😀", "a b")]
LAST_CHUNK = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
FIRST_WITHOUT_CHOICES = chunk(choices=[], prompt_filter_results=[])


def sse(*data: bytes, end: bytes = b"\n", colon: bytes = b"data: ") -> bytes:
    return b"".join(colon + piece + end + end for piece in data)


def engine(
    *, said: object = None, cut: Callable[[bytes], list[bytes]] = lambda text: [text], **spelling: bytes
) -> Script:
    """An engine that obeys `stream_options`, as vLLM does, and reports `said` as metrics with its usage."""
    reported = metrics() if said is None else said

    def script(conversation: Conversation) -> None:
        asked = json.loads(conversation.request.body)
        last = {"usage": USAGE, "metrics": reported}
        if not asked.get("stream"):
            answer = {"choices": [{"message": {"content": "日本"}}], **last}
            conversation.answer(json.dumps(answer).encode())
            return
        options = asked.get("stream_options") or {}
        texts = [FIRST_WITHOUT_CHOICES, *TEXT_CHUNKS, LAST_CHUNK]
        if options.get("include_usage") and options.get("continuous_usage_stats"):
            texts = [text[:-1] + b', "usage": {"completion_tokens": 1}}' for text in texts]
        usage_chunk = [chunk(choices=[], **last)] if options.get("include_usage") else []
        conversation.stream(*cut(sse(*texts, *usage_chunk, b"[DONE]", **spelling)))

    return script


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m1", "messages": [], "temperature": 0, **fields}).encode()


def stage(gateway: Gateway) -> StageRecord:
    """The only stage record, once the request has ended."""
    gateway.records.next_access()
    (record,) = gateway.records.stages
    assert not gateway.records.offered
    return record


def said(request_body: bytes) -> Mapping[str, Any]:
    parsed: dict[str, Any] = json.loads(request_body)
    return parsed


STREAM_OPTIONS = {
    "absent": {},
    "null": {"stream_options": None},
    "empty": {"stream_options": {}},
    "false": {"stream_options": {"include_usage": False}},
    "false, continuous": {"stream_options": {"include_usage": False, "continuous_usage_stats": True}},
    "true": {"stream_options": {"include_usage": True}},
    "true, continuous": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}


@pytest.mark.parametrize("policy", [prod_policy(), prod_policy(control=0.5)], ids=["prod", "control"])
@pytest.mark.parametrize("options", STREAM_OPTIONS.values(), ids=STREAM_OPTIONS.keys())
def test_the_client_sees_the_chunks_that_it_asked_for(options: Mapping[str, object], policy: Any) -> None:
    request = post(body(stream=True, **options))
    with serving(engine(), policy=policy) as (up, gateway):
        direct, through = ask(up.port, request), ask(gateway.port, request)
        record = stage(gateway)
    assert through.end_to_end == direct.end_to_end
    assert (record.prompt_tokens, record.completion_tokens) == (7, 21)


SPELLINGS: dict[str, dict[str, bytes]] = {
    "LF": {},
    "CRLF": {"end": b"\r\n"},
    "CR": {"end": b"\r"},
    "no space": {"colon": b"data:"},
}


@pytest.mark.parametrize("size", [1, 2, 3, 100_000])
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize(
    "options", [{}, {"stream_options": {"include_usage": True}}], ids=["hidden", "asked"]
)
def test_every_spelling_cut_anywhere_is_read_and_relayed(
    options: Mapping[str, object], spelling: dict[str, bytes], size: int
) -> None:
    def cut(text: bytes) -> list[bytes]:
        return [text[i : i + size] for i in range(0, len(text), size)]

    request = post(body(stream=True, **options))
    with serving(engine(cut=cut, **spelling), policy=prod_policy()) as (up, gateway):
        direct, through = ask(up.port, request), ask(gateway.port, request)
        record = stage(gateway)
    assert through.end_to_end == direct.end_to_end
    assert (record.completion_tokens, record.steps, record.accepted_tokens) == (21, 4, 6)


@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_is_told_what_was_decided(stream: bool) -> None:
    with serving(engine(), policy=prod_policy(lookahead=3)) as (up, gateway):
        ask(gateway.port, post(body(stream=stream, n=1), "Accept-Encoding: gzip, br"))
        received = up.requests[0]
    assert said(received.body)["vllm_xargs"] == {"ace_mode": "prod", "ace_k": 3}
    assert ("stream_options" in said(received.body)) is stream
    assert received.values("accept-encoding") == ["identity"]


def test_the_edit_leaves_every_other_byte() -> None:
    original = (
        b'{ "a":1.0,"model" : "m1", "big":123456789012345678901,"stream":true ,"s":"\\u65e5\xe6\x97\xa5\\""}'
    )
    with serving(engine(), policy=prod_policy()) as (up, gateway):
        ask(gateway.port, post(original))
        received = up.requests[0].body
    added = b'"vllm_xargs":{"ace_mode":"prod","ace_k":5},"stream_options":{"include_usage":true},'
    assert received == original.replace(b"{", b"{" + added, 1)


def test_a_clients_own_engine_arguments_stay_and_its_ace_words_are_overridden() -> None:
    theirs = {"vllm_xargs": {"ace_mode": "off", "mine": 1.0, "ace_k": 1, "ace_x": 2}}
    with serving(engine(), policy=prod_policy()) as (up, gateway):
        ask(gateway.port, post(body(**theirs)))
        received = up.requests[0].body
    assert said(received)["vllm_xargs"] == {"mine": 1.0, "ace_mode": "prod", "ace_k": 5}


def test_engine_arguments_of_a_wrong_type_are_the_engines_to_refuse() -> None:
    sent = body(vllm_xargs="x")
    with serving(engine(), policy=prod_policy()) as (up, gateway):
        ask(gateway.port, post(sent))
        assert up.requests[0].body == sent


@pytest.mark.parametrize("stream", [True, False])
def test_a_speculated_request_leaves_its_numbers(stream: bool) -> None:
    with serving(engine(), policy=prod_policy()) as (_, gateway):
        request = post(
            body(stream=stream), "traceparent: 00-a-b-01", "x-request-id: r1", "X-Ace-Workload: RAG"
        )
        ask(gateway.port, request)
        access = gateway.records.next_access()
        (record,) = gateway.records.stages
    assert record == StageRecord(
        request_id="r1",
        at=1_700_000_000.0,
        mode="prod",
        action="speculate",
        model="m1",
        backend="b1",
        rule="all",
        tenant="anonymous",
        workload="rag",
        reason=None,
        drafter="ngram",
        executor="in_engine",
        source="engine",
        profile="embedded",
        k=5,
        passes=14,
        steps=4,
        draft_tokens=16,
        accepted_tokens=6,
        accepted_by_position=(3, 2, 1, 0, 0),
        acceptance_rate=6 / 16,
        mean_acceptance_length=2.5,
        prompt_tokens=7,
        completion_tokens=21,
        decode_tokens=20,
        decode_seconds=0.2,
        tokens_per_second=100.0,
        multiplier=None,
        multiplier_reason="needs 5 requests in each arm, has 1 speculated and 0 control",
        control_kind="switchback",
        control_backend="b1",
        block_at=1_699_999_980.0,
        block_seconds=60.0,
        first_byte_seconds=access.first_byte_s if stream else None,
        total_seconds=access.duration_s,
        running=1,
        load_source="gateway",
        temperature=0,
        policy_revision="rev1",
        traceparent="00-a-b-01",
    )


class Switchback:
    """A clock that steps from block to block, so that both arms are met."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def test_speculated_and_control_requests_make_a_multiplier() -> None:
    def script(conversation: Conversation) -> None:
        mode = said(conversation.request.body)["vllm_xargs"]["ace_mode"]
        plain = metrics(None, mean_itl_ms=30.0, generation_time_ms=600.0, num_passes=20)
        engine(said=metrics() if mode == "prod" else plain)(conversation)

    clock = Switchback()
    with serving(script, policy=prod_policy(control=0.5), clock=clock) as (up, gateway):
        for _ in range(60):
            ask(gateway.port, post(body()))
            gateway.records.next_access()
            clock.now += 60
    stages = gateway.records.stages
    control = [record for record in stages if record.action == "control"]
    assert len(up.requests) == len(stages) == 60
    assert MINIMUM_SAMPLE <= len(control) <= 60 - MINIMUM_SAMPLE
    assert {(record.reason, record.control_kind) for record in control} == {("control_block", "switchback")}
    assert {(record.passes, record.steps, record.decode_tokens) for record in control} == {(20, None, 20)}
    assert stages[-1].multiplier == pytest.approx(3.0)
    assert stages[-1].multiplier_reason is None
    words = {json.dumps(said(request.body)["vllm_xargs"]) for request in up.requests}
    assert words == {'{"ace_mode": "prod", "ace_k": 5}', '{"ace_mode": "off"}'}


def test_a_request_that_spans_a_switch_is_left_out_of_the_multiplier() -> None:
    clock = Switchback()

    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        clock.now += 60 * next(n for n in range(1, 100) if switches(n))
        conversation.chunk(sse(chunk(choices=[], usage=USAGE, metrics=metrics()), b"[DONE]"))
        conversation.end_stream()

    start = clock.now

    def in_control(at: float) -> bool:
        return in_control_block("b1", "m1", at, Control(fraction=0.5))

    def switches(blocks: int) -> bool:
        return in_control(start + 60 * blocks) is not in_control(start)

    with serving(script, policy=prod_policy(control=0.5), clock=clock) as (_, gateway):
        ask(gateway.port, post(body(stream=True)))
        record = stage(gateway)
    assert record.completion_tokens == 21
    assert (record.multiplier, record.multiplier_reason) == (None, "spans_a_switch")


BYPASSED: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "field": ({"tools": [{"type": "function"}]}, {}, "tools"),
    "share": ({}, {"prod": {"share": 0.0}}, "outside_share"),
    "no drafter": ({}, {"draft": "none"}, "no_drafter"),
}


@pytest.mark.parametrize(("fields", "rule", "reason"), BYPASSED.values(), ids=BYPASSED.keys())
def test_a_bypassed_request_is_relayed_unedited(
    fields: dict[str, object], rule: dict[str, object], reason: str
) -> None:
    sent = body(stream=True, **fields)
    with serving(engine(), policy=policy_with("prod", **rule)) as (up, gateway):
        direct, through = ask(up.port, post(sent)), ask(gateway.port, post(sent))
        assert up.requests[1].body == sent
        record = stage(gateway)
    assert through.end_to_end == direct.end_to_end
    assert (record.action, record.reason, record.multiplier_reason) == ("bypass", reason, reason)
    assert (record.completion_tokens, record.control_kind, record.source) == (None, None, None)


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        ("nonsense", "malformed_metrics"),
        ([], "malformed_metrics"),
        (metrics("nonsense"), "malformed_metrics"),
        (metrics({**COUNTS, "num_draft_tokens": -1}), "malformed_metrics"),
        (metrics({**COUNTS, "num_accepted_draft_tokens": 99}), "malformed_metrics"),
        (metrics({**COUNTS, "acceptance_histogram": {"0": 1}}), "malformed_metrics"),
        (metrics(None), "no_speculation_metrics"),
        ({}, "no_speculation_metrics"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_malformed_metrics_break_no_client_and_count_as_not_reported(
    reported: object, reason: str, stream: bool
) -> None:
    request = post(body(stream=stream))
    with serving(engine(said=reported), policy=prod_policy()) as (up, gateway):
        direct, through = ask(up.port, request), ask(gateway.port, request)
        record = stage(gateway)
    assert through.end_to_end == direct.end_to_end
    assert (record.completion_tokens, record.steps, record.acceptance_rate) == (21, None, None)
    assert (record.reason, record.multiplier_reason, record.multiplier) == (reason, reason, None)


def test_metrics_that_are_no_json_still_hide_the_usage_chunk() -> None:
    usage = b'{"choices": [], "usage": {"completion_tokens": 21}, "metrics": {"mean_itl_ms": NaN}}'
    text = sse(*TEXT_CHUNKS, b"[DONE]")
    with serving(lambda c: c.stream(sse(*TEXT_CHUNKS, usage, b"[DONE]")), policy=prod_policy()) as (
        _,
        gateway,
    ):
        assert ask(gateway.port, post(body(stream=True))).body == text
        assert stage(gateway).completion_tokens == 21


def broken(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(b"data: 1\n\n")
    conversation.close()


ANSWERS_WITHOUT_NUMBERS: dict[str, tuple[Script, str]] = {
    "no usage": (lambda c: c.stream(sse(*TEXT_CHUNKS, b"[DONE]")), "no_usage"),
    "no metrics": (lambda c: c.stream(sse(chunk(choices=[], usage=USAGE), b"[DONE]")), "no_metrics"),
    "compressed": (lambda c: c.answer(b"\x1f\x8b", headers=["Content-Encoding: gzip"]), "encoded_answer"),
    "no json": (lambda c: c.answer(b"<html>"), "no_usage"),
    "404": (lambda c: c.answer(b"{}", status="404 Not Found"), "backend_error"),
    "broken": (broken, "backend_broke_off"),
    "no answer": (Conversation.close, "backend_broke_off"),
    "silence": (Conversation.wait_for_hang_up, "backend_timeout"),
}


@pytest.mark.parametrize(
    ("script", "reason"), ANSWERS_WITHOUT_NUMBERS.values(), ids=ANSWERS_WITHOUT_NUMBERS.keys()
)
def test_a_request_without_numbers_leaves_one_record_that_says_why(script: Script, reason: str) -> None:
    with serving(script, policy=prod_policy(), timeouts=Timeouts(first_byte_s=0.2)) as (_, gateway):
        ask(gateway.port, post(body(stream=True)))
        record = stage(gateway)
    assert (record.action, record.reason, record.multiplier_reason) == ("speculate", reason, reason)
    assert (record.steps, record.acceptance_rate, record.tokens_per_second, record.multiplier) == (None,) * 4


def test_a_client_that_leaves_leaves_one_record() -> None:
    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        conversation.chunk(sse(*TEXT_CHUNKS))
        conversation.wait_for_hang_up()

    with serving(script, policy=prod_policy()) as (_, gateway):
        with RawClient(gateway.port) as client:
            client.send(post(body(stream=True)))
            client.read_head()
        assert stage(gateway).reason == "client_left"


def test_a_short_answer_has_no_speed_and_counts_in_no_multiplier() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 15}
    script: Script = lambda c: c.answer(json.dumps({"usage": usage, "metrics": metrics()}).encode())  # noqa: E731
    with serving(script, policy=prod_policy()) as (_, gateway):
        ask(gateway.port, post(body()))
        record = stage(gateway)
    assert (record.completion_tokens, record.acceptance_rate, record.tokens_per_second) == (15, 6 / 16, None)
    assert record.multiplier_reason == "needs 5 requests in each arm, has 0 speculated and 0 control"


def refusing_edits(status: str) -> Script:
    def script(conversation: Conversation) -> None:
        if b"ace_mode" in conversation.request.body:
            conversation.answer(b'{"error":{"message":"vllm_xargs?"}}', status=status)
        else:
            engine()(conversation)

    return script


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "422 Unprocessable Entity", "500 Internal Server Error"]
)
def test_an_engine_that_refuses_the_edit_is_asked_plainly(status: str) -> None:
    sent = body(stream=True)
    with serving(refusing_edits(status), policy=prod_policy()) as (up, gateway):
        direct, through = ask(up.port, post(sent)), ask(gateway.port, post(sent))
        assert [b"ace_mode" in request.body for request in up.requests] == [False, True, False]
        assert up.requests[2].body == sent
        access = gateway.records.next_access()
        (record,) = gateway.records.stages
    assert through.end_to_end == direct.end_to_end
    assert (record.action, record.reason, record.executor) == ("bypass", "executor_failed", None)
    assert (access.action, access.retries, access.status) == ("bypass", 1, 200)


def test_a_request_that_is_refused_plainly_too_gets_that_answer() -> None:
    with serving(lambda c: c.answer(b'{"error":1}', status="400 Bad Request"), policy=prod_policy()) as (
        up,
        gateway,
    ):
        answer = ask(gateway.port, post(body()))
        assert len(up.requests) == 2
        record = stage(gateway)
    assert (answer.status, answer.body) == (400, b'{"error":1}')
    assert (record.action, record.reason) == ("bypass", "backend_error")


def test_a_half_event_is_not_passed_on_when_the_usage_chunk_is_hidden() -> None:
    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        conversation.chunk(sse(*TEXT_CHUNKS), b'data: {"cho')
        conversation.close()

    with serving(script, policy=prod_policy()) as (_, gateway):
        answer = ask(gateway.port, post(body(stream=True)))
    assert answer.body.startswith(sse(*TEXT_CHUNKS) + b'data: {"error":')


def test_a_stream_of_stated_length_loses_its_length_with_its_usage_chunk() -> None:
    text = sse(*TEXT_CHUNKS, chunk(choices=[], usage=USAGE), b"[DONE]")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(text)
    with serving(lambda c: c.send(head + text), policy=prod_policy()) as (_, gateway):
        answer = ask(gateway.port, post(body(stream=True)))
    assert (answer.body, answer.whole) == (sse(*TEXT_CHUNKS, b"[DONE]"), True)
    assert answer.header("content-length") is None


def hundred_tokens_in_37_chunks(*last: Mapping[str, object]) -> Script:
    """One to five tokens a chunk, the last of them with reasoning, text, a call and the end together."""
    words = [f" w{n}" for n in range(100)]
    counts = [5, 1, 4, 2, 3, 1] * 6
    texts = ["".join(words.pop(0) for _ in range(count)) for count in counts]
    everything: dict[str, object] = {
        "reasoning_content": "so",
        "content": "".join(words),
        "tool_calls": [{"index": 0, "id": "t", "function": {"name": "clock", "arguments": "{"}}],
    }
    chunks = [chunk(choices=[{"index": 0, "delta": {"content": text}}]) for text in texts]
    chunks.append(chunk(choices=[{"index": 0, "delta": everything, "finish_reason": "tool_calls"}]))
    assert len(chunks) == 37
    ends = [chunk(choices=[], **document) for document in last]
    return lambda conversation: conversation.stream(sse(*chunks, *ends, b"[DONE]"))


def test_tokens_are_counted_by_the_engine_and_not_by_chunks() -> None:
    """Many tokens in a chunk, several fields in one: all reach the client (BR-B17)."""
    last = {
        "usage": {"prompt_tokens": 7, "completion_tokens": 100},
        "metrics": metrics(generation_time_ms=990.0),
    }
    request = post(body(stream=True, stream_options={"include_usage": True}))
    with serving(hundred_tokens_in_37_chunks(last), policy=prod_policy()) as (up, gateway):
        direct, through = ask(up.port, request), ask(gateway.port, request)
        record = stage(gateway)
    assert through.end_to_end == direct.end_to_end
    assert (record.completion_tokens, record.decode_tokens) == (100, 99)
    assert record.tokens_per_second == pytest.approx(100.0)


def test_chunks_that_nobody_counted_are_no_tokens() -> None:
    with serving(hundred_tokens_in_37_chunks(), policy=prod_policy()) as (_, gateway):
        ask(gateway.port, post(body(stream=True)))
        record = stage(gateway)
    assert (record.completion_tokens, record.tokens_per_second, record.reason) == (None, None, "no_usage")
