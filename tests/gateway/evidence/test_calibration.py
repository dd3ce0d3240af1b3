"""Timing a loop's steps: against a real server and a draft runner, under a load that stays or does not."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import CalibrationFailed
from gateway.evidence import calibration as calibration_module
from gateway.evidence.calibration import CONTEXT_TOKENS, DRAFTS, ROUNDS, TRIES, VALID_S, CostMeter
from gateway.evidence.loop_costs import CostKey
from gateway.fleet.health import checked_session
from gateway.fleet.load import Load
from gateway.fleet.model import Backend
from gateway.loop.runner import LoopRunners
from gateway.proxy.upstream import BackendPool, Timeouts
from gateway.shadow.tokenize import BackendTokenizer
from tests.fakes.loop_runner import Fault, LoopRunner
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served

pytestmark = pytest.mark.slow

NOON = 1_700_000_000.0
STRATEGIES = ("scored", "fanout")


def key(strategy: str = "scored", band: str = "1") -> CostKey:
    return CostKey(backend="gpu-1", model="m", strategy=strategy, drafter="ngram", band=band)


@pytest.fixture(scope="module")
def runner() -> Iterator[LoopRunner]:
    with LoopRunner() as started:
        yield started


@pytest.fixture(autouse=True)
def drafting(runner: LoopRunner) -> None:
    """It has always something to propose."""
    runner.reset(lambda answer, k: [7] * k)


@asynccontextmanager
async def metering(
    server: OpenAIServer,
    runner: LoopRunner,
    load: Load | None = None,
    timer: Callable[[], float] | None = None,
) -> AsyncIterator[tuple[CostMeter, Backend]]:
    ticks = itertools.count()
    with served(server.app) as url:
        pool = BackendPool(timeouts=Timeouts())
        async with checked_session() as session:
            meter = CostMeter(
                pool=pool,
                tokenize=BackendTokenizer(pool),
                runners=LoopRunners(session=session, runners=lambda: [runner], token="t"),
                load=load or Load(),
                now=lambda: NOON,
                timer=timer or (lambda: float(next(ticks))),
            )
            yield meter, Backend(name="gpu-1", url=url)
        await pool.close()


def generating(server: OpenAIServer) -> list[dict[str, Any]]:
    return [body for path, body in server.asked if path == "/v1/completions"]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_part_of_a_step_is_timed(strategy: str, runner: LoopRunner) -> None:
    """By a clock that ticks whenever it is looked at, a call takes one tick."""
    async with metering(OpenAIServer(token_s=0.003), runner) as (meter, backend):
        (found,) = await meter.measure(backend, [key(strategy)])
    assert (found.key, found.measured_at, found.expires_at) == (key(strategy), NOON, NOON + VALID_S)
    assert found.verify_seconds == dict.fromkeys(DRAFTS, 1.0)
    assert found.draft_seconds == dict.fromkeys(DRAFTS, 1.0)
    assert found.pass_seconds == {1 + drafts: 2.0 for drafts in DRAFTS}
    assert found.plain_seconds > 0
    assert found.context_tokens == CONTEXT_TOKENS


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_verification_is_asked_for_as_the_loop_asks(strategy: str, runner: LoopRunner) -> None:
    server = OpenAIServer(token_s=0.003)
    async with metering(server, runner) as (meter, backend):
        await meter.measure(backend, [key(strategy)])
    calls = [body for body in generating(server) if not body.get("stream")]
    assert len(calls) == 1 + ROUNDS * len(DRAFTS)
    if strategy == "scored":
        lengths = [body["vllm_xargs"]["ace_score"] for body in calls]
    else:
        lengths = [len(body["prompt"]) - 1 for body in calls]
    assert lengths == [0, *DRAFTS * ROUNDS]
    assert {body["temperature"] for body in calls} == {0}


async def test_plain_and_verification_calls_take_turns_after_one_that_does_not_count(
    runner: LoopRunner,
) -> None:
    server = OpenAIServer(token_s=0.003)
    async with metering(server, runner) as (meter, backend):
        await meter.measure(backend, [key()])
    streamed = [bool(body.get("stream")) for body in generating(server)]
    assert streamed == [False, True, *[True, *[False] * len(DRAFTS)] * ROUNDS]


async def test_the_target_is_timed_once_for_all_drafters(runner: LoopRunner) -> None:
    server = OpenAIServer(token_s=0.003)
    keys = [key(), replace(key(), drafter="suffix")]
    async with metering(server, runner) as (meter, backend):
        found = await meter.measure(backend, keys)
    assert [calibration.key for calibration in found] == keys
    assert len(generating(server)) == 2 + ROUNDS + ROUNDS * len(DRAFTS)
    drafters = [conversation.start["drafter"] for conversation in runner.conversations]
    assert drafters == ["ngram"] * len(DRAFTS[1:]) + ["suffix"] * len(DRAFTS[1:])


async def test_no_prompt_is_sent_twice(runner: LoopRunner) -> None:
    """Or a server's prefix cache would answer for it."""
    server = OpenAIServer(token_s=0.003)
    async with metering(server, runner) as (meter, backend):
        for _ in range(2):
            await meter.measure(backend, [key()])
    streams = [tuple(body["prompt"]) for body in generating(server) if body.get("stream")]
    contexts = [tuple(body["prompt"]) for body in generating(server) if not body.get("stream")]
    for prompts in (streams, contexts):
        assert len(set(prompts)) == len(prompts)


async def test_every_draft_length_is_asked_of_the_runner(runner: LoopRunner) -> None:
    async with metering(OpenAIServer(token_s=0.003), runner) as (meter, backend):
        await meter.measure(backend, [key()])
    starts = [conversation.start for conversation in runner.conversations]
    assert [start["k"] for start in starts] == list(DRAFTS[1:])
    assert {start["drafter"] for start in starts} == {"ngram"}
    assert {conversation.answer_tokens for conversation in runner.conversations} == {None}


async def test_a_runner_that_proposes_nothing_is_timed_all_the_same(runner: LoopRunner) -> None:
    runner.reset(lambda answer, k: [])
    async with metering(OpenAIServer(token_s=0.003), runner) as (meter, backend):
        (found,) = await meter.measure(backend, [key()])
    assert found.draft_seconds == dict.fromkeys(DRAFTS, 1.0)


class Restless(Load):
    """Client requests come and go: each look finds the next number of them, and then the last."""

    def __init__(self, *running: int) -> None:
        super().__init__()
        self._seen = itertools.chain(running, itertools.repeat(running[-1]))

    def running(self, backend: str) -> int:
        return next(self._seen)


async def test_what_was_timed_while_the_load_changed_is_timed_again(runner: LoopRunner) -> None:
    server = OpenAIServer(token_s=0.003)
    async with metering(server, runner, Restless(0, 1, 0)) as (meter, backend):
        await meter.measure(backend, [key()])
    assert len([body for body in generating(server) if body.get("stream")]) == 2 + ROUNDS


async def test_the_load_is_waited_for(runner: LoopRunner) -> None:
    async with metering(OpenAIServer(token_s=0.003), runner, Restless(0, 0, 1)) as (meter, backend):
        assert (await meter.measure(backend, [key(band="2-4")]))[0].key.band == "2-4"


async def test_a_load_that_never_comes_is_told(runner: LoopRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_module, "PATIENCE_S", 3.0)
    async with metering(OpenAIServer(token_s=0.003), runner, Restless(4)) as (meter, backend):
        with pytest.raises(CalibrationFailed, match="the load was not 1 for 3 s, but 5-16"):
            await meter.measure(backend, [key()])


async def test_a_load_that_never_stays_is_told(runner: LoopRunner) -> None:
    async with metering(OpenAIServer(token_s=0.003), runner, Restless(*([0, 1] * TRIES))) as (meter, backend):
        with pytest.raises(CalibrationFailed, match="came and went"):
            await meter.measure(backend, [key()])


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("tokenize", "gives no ids for a prompt of ours"),
        ("completions", "answered HTTP 404 to /v1/completions"),
        ("stream", "streamed 0 of 16 ids"),
        ("scored", "`ace_score`"),
    ],
)
async def test_a_backend_that_cannot_is_told_by_what_it_did(
    missing: str, said: str, runner: LoopRunner
) -> None:
    async with metering(OpenAIServer(token_s=0.003).without(missing), runner) as (meter, backend):
        with pytest.raises(CalibrationFailed, match=f"'gpu-1' could not be calibrated: .*{said}"):
            await meter.measure(backend, [key()])


async def test_a_stream_in_one_piece_says_nothing_of_the_speed(runner: LoopRunner) -> None:
    stopped = itertools.repeat(0.0)
    async with metering(OpenAIServer(), runner, timer=lambda: next(stopped)) as (meter, backend):
        with pytest.raises(CalibrationFailed, match="in one piece"):
            await meter.measure(backend, [key()])


async def test_a_runner_that_fails_is_told(runner: LoopRunner) -> None:
    runner.reset(lambda answer, k: [7] * k, fault=Fault(after=6, how="close"))
    async with metering(OpenAIServer(token_s=0.003), runner) as (meter, backend):
        with pytest.raises(CalibrationFailed, match="the draft runner was lost"):
            await meter.measure(backend, [key()])
