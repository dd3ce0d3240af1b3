"""Which requests the loop takes on, and where it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.loop import executor
from gateway.policy.model import Action, Decision
from gateway.proxy import dispatch
from probes.model import Capability, Finding, Support
from tests.fakes.byte_target import ByteTarget
from tests.fakes.loop_runner import LoopRunner
from tests.gateway.loop.harness import Loop, right_by, said
from tests.gateway.proxy.harness import Gateway, backend_at

pytestmark = pytest.mark.parametrize("strategy", ["fanout"], indirect=True)


def knowing_its_context(loop: Loop, tokens: int) -> None:
    finding = Finding(
        capability=Capability.CONTEXT_LENGTH, support=Support.YES, evidence="seen", value=tokens
    )
    (backend,) = loop.gateway.fleet.backends
    known = replace(backend, findings={Capability.CONTEXT_LENGTH: finding})
    loop.gateway.fleet = replace(loop.gateway.fleet, backends=(known,))


def test_an_answer_of_unknown_length_gets_what_the_context_holds(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    knowing_its_context(loop, 20)
    loop.ask(max_tokens=None)
    assert runner.conversations[0].start["max_tokens"] == 20 - 8


@pytest.mark.parametrize(("context", "most"), [(None, None), (8, None), (20, 13)])
def test_a_length_that_only_the_backend_can_judge_is_left_to_it(
    loop: Loop, target: ByteTarget, runner: LoopRunner, context: int | None, most: int | None
) -> None:
    if context is not None:
        knowing_its_context(loop, context)
    through, plain = loop.both(max_tokens=most)
    assert through == plain
    assert loop.records()[1].reason == "executor_failed"
    assert not runner.conversations


def test_beyond_the_longest_context_the_answer_goes_on_plainly(
    loop: Loop, target: ByteTarget, runner: LoopRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "LONGEST_CONTEXT", {"fanout": 8 + 6})
    runner.reset(right_by(target.answer, [3]))
    through, plain = loop.both(stream=True, stream_options={"include_usage": True})
    assert through == plain
    _, stage = loop.records()
    assert (stage.action, stage.reason) == ("speculate", "context_too_long")
    (continued,) = target.calls("plain")
    assert len(continued["prompt"]) == 8 + 6


def test_a_prompt_beyond_it_is_not_taken_on(
    loop: Loop, target: ByteTarget, runner: LoopRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "LONGEST_CONTEXT", {"fanout": 8})
    through, plain = loop.both()
    assert through == plain
    assert loop.records()[1].reason == "context_too_long"
    assert not runner.conversations


RUNNERS: dict[str, Any] = {
    "none": [],
    "one that drafts otherwise": ["other"],
    "one that is gone": ["gone"],
    "one that refuses": ["refuses"],
}


@pytest.mark.parametrize("who", RUNNERS.values(), ids=RUNNERS.keys())
def test_without_a_runner_the_request_is_relayed(
    byte_target: tuple[ByteTarget, str],
    target: ByteTarget,
    runner: LoopRunner,
    decided: Decision,
    who: list[str],
) -> None:
    runner.reset(runner.propose, rejects=401)
    runners = [_runner(kind, runner) for kind in who]
    with Gateway([backend_at(byte_target[1], findings={})], runners=runners) as gateway:
        loop = Loop(gateway, int(byte_target[1].rpartition(":")[2]))
        through, plain = loop.both()
        assert through == plain
        _, stage = loop.records()
    assert (stage.action, stage.reason, stage.executor) == ("bypass", "no_runner", None)


def test_another_runner_is_asked_where_one_is_away(
    byte_target: tuple[ByteTarget, str], target: ByteTarget, runner: LoopRunner, decided: Decision
) -> None:
    runners = [_runner("gone", runner), _runner("other", runner), runner]
    with Gateway([backend_at(byte_target[1], findings={})], runners=runners) as gateway:
        loop = Loop(gateway, int(byte_target[1].rpartition(":")[2]))
        assert said(loop.ask()).text == "one two one two"
        assert loop.records()[1].reason is None


def test_a_control_request_is_served_plainly_and_timed_by_its_stream(
    loop: Loop, target: ByteTarget, runner: LoopRunner, decided: Decision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain server reports no decode times, and its clients rarely ask how many tokens there were."""
    control = replace(decided, action=Action.CONTROL, reason="control_block", strategy=None)
    monkeypatch.setattr(dispatch, "decide", lambda *_, **__: control)
    through, plain = loop.both(stream=True)
    assert through == plain
    assert through.usage is None
    assert not runner.conversations
    _, stage = loop.records()
    assert (stage.action, stage.executor, stage.completion_tokens) == ("control", "gateway_loop", 16)
    assert stage.tokens_per_second == pytest.approx(15 / (stage.decode_seconds or 0))
    assert stage.multiplier_reason == "needs 5 requests in each arm, has 0 speculated and 1 control"


def test_a_prompt_of_ids_is_taken_as_it_is(loop: Loop, target: ByteTarget) -> None:
    loop.ask(prompt=[1, 2, 301])
    assert not target.calls("/tokenize")
    assert target.calls("verify")[0]["prompt"] == [[1, 2, 301]]


class _Known:
    def __init__(self, url: str, *drafters: str) -> None:
        self.url, self.drafters = url, drafters


def _runner(kind: str, runner: LoopRunner) -> Any:
    return {
        "other": _Known(runner.url, "suffix"),
        "gone": _Known("http://127.0.0.1:9", "ngram"),
        "refuses": runner,
    }[kind]
