"""What is believed of a draft runner: only what follows from the target's own choices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.fleet.health import checked_session
from gateway.loop.errors import GoPlain, WhyPlain
from gateway.loop.runner import LoopRunners, LoopStart, Verified
from gateway.loop.strategies import Choices
from tests.fakes.loop_runner import LoopRunner

START = LoopStart(
    prompt_ids=(1, 2), drafter="ngram", profile="runner", k=3, tenant="t", max_tokens=6,
    plain_seconds_per_token=None,
)  # fmt: skip
FIRST = Choices(ids=(4,), ends=(False,))
DRAFT = (5, 6)
CHOICES = Choices(ids=(5, 7, 9), ends=(False, False, False))
HONEST = {"emitted": [5, 7], "drafted": 2, "accepted": 1, "draft": [8]}


@pytest.fixture
async def runners(runner: LoopRunner) -> AsyncIterator[LoopRunners]:
    async with checked_session() as session:
        yield LoopRunners(session=session, runners=lambda: [runner], token="t")


async def verified(
    runners: LoopRunners, runner: LoopRunner, says: object, choices: Choices = CHOICES
) -> Verified:
    """What follows when the runner says that to the choices for DRAFT, the answer's second pass."""
    runner.reset(lambda answer, k: DRAFT)
    runner.says = lambda frame: says if frame.get("drafted") else frame
    async with runners.opened(START) as loop:
        assert (await loop.verify((), FIRST)).draft == DRAFT
        return await loop.verify(DRAFT, choices)


async def test_an_honest_runner_is_followed(runners: LoopRunners, runner: LoopRunner) -> None:
    assert await verified(runners, runner, HONEST) == Verified(
        emitted=(5, 7), accepted=1, ended=False, draft=(8,)
    )


async def test_one_that_emits_less_than_it_might_is_too(runners: LoopRunners, runner: LoopRunner) -> None:
    says = {"emitted": [5], "drafted": 2, "accepted": 1, "draft": []}
    assert (await verified(runners, runner, says)).emitted == (5,)


async def test_an_end_leaves_nothing_to_draft(runners: LoopRunners, runner: LoopRunner) -> None:
    choices = Choices(ids=(5, 7, 9), ends=(False, True, False))
    done = await verified(runners, runner, HONEST, choices)
    assert (done.ended, done.draft) == (True, None)


async def test_so_does_a_stop(runners: LoopRunners, runner: LoopRunner) -> None:
    says = {"emitted": [5, 7], "drafted": 2, "accepted": 1, "stop": "slower_than_plain"}
    done = await verified(runners, runner, says)
    assert (done.ended, done.draft, done.slower_than_plain) == (False, None, True)


LIES: dict[str, dict[str, Any]] = {
    "a choice after a draft that the target did not choose": {"emitted": [5, 7, 9]},
    "a draft instead of the choice": {"emitted": [5, 6]},
    "nothing": {"emitted": []},
    "no list": {"emitted": True},
    "no ids": {"emitted": [5, "7"]},
    "more than there is": {"emitted": [5, 7, 9, 9]},
    "more accepted": {"accepted": 2},
    "fewer accepted": {"accepted": 0},
    "other drafts": {"drafted": 3},
    "no draft": {"draft": None},
    "a draft of something else": {"draft": ["8"]},
    "a draft of no id": {"draft": [-1]},
    "a draft above K": {"draft": [8, 8, 8, 8]},
    # Six tokens in all, of which three are there: the bonus token needs a place too.
    "a draft beyond the answer": {"draft": [8, 8, 8]},
    "a stop for a reason of its own": {"draft": None, "stop": "tired"},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_what_does_not_follow_is_not_believed(
    runners: LoopRunners, runner: LoopRunner, lie: dict[str, Any]
) -> None:
    says = {name: value for name, value in (HONEST | lie).items() if value is not None}
    with pytest.raises(GoPlain) as refusal:
        await verified(runners, runner, says)
    assert refusal.value.reason is WhyPlain.RUNNER_DISAGREED


async def test_neither_is_what_goes_on_behind_an_end(runners: LoopRunners, runner: LoopRunner) -> None:
    """BR-B06."""
    with pytest.raises(GoPlain) as refusal:
        await verified(runners, runner, HONEST, Choices(ids=(5, 7, 9), ends=(True, False, False)))
    assert refusal.value.reason is WhyPlain.RUNNER_DISAGREED


async def test_a_draft_before_the_first_token_is_not_taken(runners: LoopRunners, runner: LoopRunner) -> None:
    runner.says = lambda frame: {"draft": [8]}
    with pytest.raises(GoPlain) as refusal:
        async with runners.opened(START):
            raise AssertionError("it was opened")
    assert refusal.value.reason is WhyPlain.NO_RUNNER
