"""The target itself fails: before the first byte the request is relayed, after it the stream breaks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.proxy.upstream import Timeouts
from tests.fakes.byte_target import ByteTarget
from tests.fakes.loop_runner import LoopRunner
from tests.fakes.raw_http import Answer, ask, post
from tests.gateway.loop.harness import Loop, right_by, said
from tests.gateway.proxy.harness import Gateway, backend_at

pytestmark = pytest.mark.parametrize("strategy", ["fanout"], indirect=True)


def after_calls(count: int, status: int = 500, *, only: str | None = None) -> Any:
    """Refuses every generating call from the one with that index on, counted over all of the test."""
    seen = 0

    def refuses(body: dict[str, Any]) -> int | None:
        nonlocal seen
        seen += 1
        plain = "stream" in body or "messages" in body
        return status if seen > count and only in (None, "plain" if plain else "verify") else None

    return refuses


def is_broken_off(answer: Answer) -> bool:
    """Ended by an error event and no [DONE], as any stream is whose backend breaks off."""
    last = answer.body.decode().rstrip().rpartition("data: ")[2]
    return b"[DONE]" not in answer.body and "error" in json.loads(last)


def test_a_target_that_refuses_to_verify_continues_plainly(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(right_by(target.answer, [2]))
    target.reset(target.answer, refuses=after_calls(3, only="verify"))
    through, plain = loop.both(stream=True)
    assert through == plain
    assert loop.records()[1].reason == "target_refused"


def test_a_target_that_refuses_everything_breaks_the_stream(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(right_by(target.answer, [2]))
    target.reset(target.answer, refuses=after_calls(3))
    answer = loop.ask(stream=True)
    access, stage = loop.records()
    assert answer.status == 200
    assert is_broken_off(answer)
    assert said(answer).text == "one two"[: len(said(answer).text)] != ""
    assert (access.ending, stage.reason) == ("backend_broke_off", "backend_broke_off")
    assert stage.multiplier is None


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_a_continuation_that_breaks_off_breaks_the_stream(
    loop: Loop, target: ByteTarget, runner: LoopRunner, tokens: int
) -> None:
    runner.reset(right_by(target.answer, [2]))
    target.reset(target.answer, refuses=after_calls(2, only="verify"), breaks_off=tokens)
    answer = loop.ask(stream=True)
    assert is_broken_off(answer)
    assert loop.records()[0].ending == "backend_broke_off"


def test_a_gateway_that_stops_says_so_and_does_not_blame_the_target(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(right_by(target.answer, [2]))
    refusing = after_calls(3)

    def stops(body: dict[str, Any]) -> int | None:
        if refusing(body):
            loop.gateway.cut()
        return None

    target.reset(target.answer, refuses=stops)
    answer = loop.ask(stream=True)
    assert is_broken_off(answer)
    access, stage = loop.records()
    assert (access.ending, stage.reason) == ("gateway_stopping", "gateway_stopping")


def test_an_answer_in_one_piece_is_asked_for_again_as_the_client_did(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(right_by(target.answer, [2]))
    target.reset(target.answer, refuses=after_calls(2, only="verify"), breaks_off=1)
    through, plain = loop.both()
    assert through == plain
    access, stage = loop.records()
    assert (access.action, stage.reason) == ("bypass", "executor_failed")


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_what_the_target_refuses_at_once_the_client_hears_from_the_target(
    loop: Loop, target: ByteTarget, status: int
) -> None:
    target.reset(target.answer, refuses=after_calls(0, status))
    answer = loop.ask()
    access, stage = loop.records()
    assert answer.status == status
    assert json.loads(answer.body)["error"]["code"] == "refused"
    assert (access.ending, stage.action, stage.reason) == ("completed", "bypass", "backend_error")


def test_a_target_that_is_gone_is_reported_and_answered_as_ever(decided: object, runner: LoopRunner) -> None:
    with Gateway([backend_at("http://127.0.0.1:9")], runners=[runner]) as gateway:
        answer = ask(gateway.port, post(b'{"model":"m1","messages":[]}'))
        assert gateway.records.next_access().ending == "backend_unreachable"
        assert answer.status == 502
        assert gateway.records.unreachable[0][0] == "b1"


@pytest.mark.parametrize("stream", [False, True])
def test_a_target_that_is_too_slow_is_not_asked_again(
    byte_target: tuple[ByteTarget, str], target: ByteTarget, decided: object, runner: LoopRunner, stream: bool
) -> None:
    async def never(path: str) -> None:
        if path == "/v1/completions":
            await asyncio.Event().wait()

    target.reset(target.answer, speaks_up=never)
    backend = backend_at(byte_target[1], findings={})
    with Gateway([backend], runners=[runner], timeouts=Timeouts(first_byte_s=0.2)) as gateway:
        body = json.dumps({"model": "m1", "messages": [], "stream": stream, "max_tokens": 9}).encode()
        answer = ask(gateway.port, post(body))
    assert answer.status == 504
    assert [path for path, _ in target.asked if path.startswith("/v1/")] == ["/v1/completions"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_target_that_has_no_such_route_is_asked_plainly(
    loop: Loop, target: ByteTarget, path: str, stream: bool
) -> None:
    target.reset(target.answer, missing=frozenset({path}))
    through, plain = loop.both(stream=stream)
    assert through == plain
    assert loop.records()[1].reason == "executor_failed"
