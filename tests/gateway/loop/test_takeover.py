"""The draft runner dies, hangs or lies at any moment: the client gets plain decoding's very answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.loop import runner as runner_module
from tests.fakes.byte_target import SPECIAL, ByteTarget, ids_of
from tests.fakes.loop_runner import FAULTS, Fault, LoopRunner
from tests.gateway.loop.harness import Loop, right_by
from tests.gateway.proxy.harness import Gateway

ANSWER = (*ids_of("日😀 é"), SPECIAL, *ids_of("! STOP, STOP日 so"))
"""Characters of two, three and four bytes, a special token, and stop strings inside words."""

DRAFTS = (2, 0, 5, 1)
"""So that emissions end inside characters and inside the stop string."""

USAGE = {"stream": True, "stream_options": {"include_usage": True}}
IN_A_STOP_STRING = {"stop": ["STOP日", "never"], **USAGE}
ASKED: dict[str, dict[str, Any]] = {
    "to the end": USAGE,
    "stop string": IN_A_STOP_STRING,
    "stop string, whole": {"stop": "STOP日"},
    "length inside a character": {"max_tokens": 6, **USAGE},
    "completion": {"prompt": "Write.", **USAGE},
}
CASES = [("close", asked) for asked in ASKED] + [(how, "stop string") for how in FAULTS if how != "close"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fanout"], indirect=True)
@pytest.mark.parametrize(("how", "asked"), CASES)
def test_the_answer_is_plain_decodings_wherever_the_runner_fails(
    loop: Loop,
    target: ByteTarget,
    runner: LoopRunner,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    asked: str,
) -> None:
    target.reset(ANSWER)
    frames = frames_of(loop, runner, ASKED[asked])
    if how == "hang":
        monkeypatch.setattr(runner_module, "FRAME_S", 0.1)
        monkeypatch.setattr(runner_module, "CLOSE_S", 0.01)
    assert frames > 6
    for after in range(frames):
        runner.reset(right_by(ANSWER, DRAFTS), Fault(after, how))
        through, plain = loop.both(**ASKED[asked])
        access, stage = loop.records()
        assert through == plain, after
        assert access.ending == "completed"
        assert (stage.action, stage.reason) in EXPECTED[how], after


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fanout"], indirect=True)
@pytest.mark.parametrize("asked", ASKED)
def test_the_answer_is_plain_decodings_wherever_a_kill_falls(
    loop: Loop, target: ByteTarget, runner: LoopRunner, asked: str
) -> None:
    target.reset(ANSWER)
    runner.reset(right_by(ANSWER, DRAFTS))
    plain = loop.plainly(**ASKED[asked])
    target.asked.clear()
    loop.through(**ASKED[asked])
    loop.records()
    reasons = set()
    for kill_at in range(len(target.asked)):
        target.reset(ANSWER, speaks_up=Killer(loop.gateway, kill_at))
        runner.reset(right_by(ANSWER, DRAFTS))
        through = loop.through(**ASKED[asked])
        access, stage = loop.records()
        verified = len(target.calls("verify"))
        assert (through, access.ending) == (plain, "completed"), kill_at
        # One pass may have been on its way already.
        assert verified <= kill_at + 1
        assert stage.multiplier is None
        reasons.add((stage.action, stage.reason))
        loop.gateway.resume()
    assert {("bypass", "killed"), ("speculate", "killed")} <= reasons
    assert reasons <= {("bypass", "killed"), ("speculate", "killed"), _WELL}


class Killer:
    """Throws the kill switch while the target has one of its calls."""

    def __init__(self, gateway: Gateway, calls_before: int) -> None:
        self._gateway = gateway
        self._calls_before = calls_before

    async def __call__(self, path: str) -> None:
        """A call comes in."""
        if self._calls_before == 0:
            await asyncio.to_thread(self._gateway.kill)
        self._calls_before -= 1


def frames_of(loop: Loop, runner: LoopRunner, asked: dict[str, Any]) -> int:
    """How many frames a loop has in which nothing fails."""
    runner.reset(right_by(ANSWER, DRAFTS))
    loop.ask(**asked)
    assert loop.records()[1].reason is None
    conversation = runner.conversations[-1]
    assert conversation.over.wait(timeout=10)
    return conversation.frames


_WELL = ("speculate", None)
"""The answer was complete, and the runner had only to be told."""
_AT_FIRST = (("bypass", "no_runner"), ("bypass", "executor_failed"))
EXPECTED = {
    "close": (*_AT_FIRST, ("speculate", "runner_lost"), _WELL),
    "reset": (*_AT_FIRST, ("speculate", "runner_lost"), _WELL),
    "hang": (*_AT_FIRST, ("speculate", "runner_lost"), _WELL),
    "garbage": (*_AT_FIRST, ("speculate", "runner_disagreed"), _WELL),
    "wrong tokens": (*_AT_FIRST, ("speculate", "runner_disagreed"), _WELL),
    "wrong counts": (*_AT_FIRST, ("speculate", "runner_disagreed"), _WELL),
    "too long a draft": (*_AT_FIRST, ("speculate", "runner_disagreed"), _WELL),
    "slower": (("speculate", "slower_than_plain"), _WELL),
}


@pytest.mark.parametrize("strategy", ["scored"], indirect=True)
def test_a_loop_by_scores_is_taken_over_like_one_by_fanout(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    for after in range(4, 9):
        target.reset(ANSWER, skips_special=True)
        runner.reset(right_by(ANSWER, DRAFTS), Fault(after, "close"))
        through, plain = loop.both(**IN_A_STOP_STRING)
        assert through == plain, after
        assert loop.records()[1].reason == "runner_lost"


@pytest.mark.parametrize("strategy", ["fanout"], indirect=True)
def test_before_the_first_token_the_clients_own_request_is_relayed(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(right_by(target.answer, DRAFTS), Fault(2, "close"))
    answer = loop.ask(user="Änn", temperature=0.5)
    access, stage = loop.records()
    assert answer.status == 200
    (body,) = target.calls("/v1/chat/completions")
    assert (body["user"], body["temperature"]) == ("Änn", 0.5)
    assert not target.calls("plain")
    assert (access.action, access.retries, stage.executor) == ("bypass", 1, None)


@pytest.mark.parametrize("strategy", ["fanout"], indirect=True)
def test_afterwards_the_target_continues_the_very_ids(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(right_by(target.answer, [3]), Fault(6, "close"))
    loop.ask(temperature=0.7, top_p=0.9, top_k=5, cache_salt="salt", max_tokens=12)
    loop.records()
    (continued,) = target.calls("plain")
    emitted = runner.conversations[-1].answer[:5]
    assert continued["prompt"] == [*runner.conversations[-1].start["prompt_ids"], *emitted]
    assert continued["max_tokens"] == 12 - 5
    sampling = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "cache_salt": "salt"}
    assert continued.items() >= (sampling | {"model": "m1", "stream": True, "return_token_ids": True}).items()
    for verification in target.calls("verify"):
        assert verification.items() >= sampling.items()


@pytest.mark.parametrize("strategy", ["fanout"], indirect=True)
def test_an_in_request_stop_is_counted_with_what_it_came_to(
    loop: Loop, target: ByteTarget, runner: LoopRunner
) -> None:
    runner.reset(right_by(target.answer, [3]), Fault(5, "slower"))
    loop.ask()
    _, stage = loop.records()
    assert (stage.action, stage.reason, stage.source) == ("speculate", "slower_than_plain", "loop")
    assert (stage.steps, stage.draft_tokens, stage.accepted_tokens) == (1, 5, 3)
    assert (stage.completion_tokens, stage.passes) == (len(target.answer) + 1, None)
    assert stage.multiplier_reason == "needs 5 requests in each arm, has 1 speculated and 0 control"
