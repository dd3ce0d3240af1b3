"""kill -9 of the draft runner at 200 moments of answers that it drafts for: no client notices."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.byte_target import SPECIAL, ByteTarget, ids_of
from tests.fakes.mortal_runner import MortalRunner
from tests.fakes.served import served
from tests.gateway.loop.harness import Loop, decide_on_loops
from tests.gateway.proxy.harness import Gateway, backend_at

pytestmark = [pytest.mark.slow, pytest.mark.integration]

KILLS = 200
LATEST_S = 0.004
"""So that a kill falls on the target's turn, on the runner's, or between them."""

ANSWER = (
    *ids_of("one 日本 two 😀 one 日本 two 😀 "),
    SPECIAL,
    *ids_of("one 日本 STOP two 😀 one 日本 STOP日 on"),
)
"""Repeats itself, so that drafts copied from it are accepted; a stop string nearly comes before it does."""

USAGE = {"stream": True, "stream_options": {"include_usage": True}}
ASKED: list[dict[str, Any]] = [
    {"max_tokens": 150, **USAGE},
    {"max_tokens": 150},
    {"max_tokens": 150, "stop": "STOP日", **USAGE},
    {"max_tokens": 31, **USAGE},
]


@pytest.fixture
def runner() -> Iterator[MortalRunner]:
    with MortalRunner() as runner:
        yield runner


class Killer:
    """Kills a runner once, a little after a call of the target's has come in."""

    def __init__(self, runner: MortalRunner, *, calls_before: int, later_s: float) -> None:
        self._calls_before = calls_before
        self._killing = threading.Timer(later_s, runner.kill)

    async def __call__(self, path: str) -> None:
        """A call comes in; it is not held up."""
        if self._calls_before == 0:
            self._killing.start()
        self._calls_before -= 1

    def has_killed(self) -> bool:
        """Whether it did; waits for what is under way."""
        if self._calls_before >= 0:
            return False
        self._killing.join()
        return True


def test_no_client_notices_a_killed_runner(runner: MortalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    decide_on_loops(monkeypatch, "fanout")
    moments = random.Random(7)
    reasons: Counter[tuple[str, str | None]] = Counter()
    target = ByteTarget(answer=ANSWER)
    with served(target.app) as url, Gateway([backend_at(url)], runners=[runner]) as gateway:
        loop = Loop(gateway, int(url.rpartition(":")[2]))
        plain = [loop.plainly(**asked) for asked in ASKED]
        calls = [_calls_for(loop, target, asked) for asked in ASKED]
        turns = itertools.cycle(range(len(ASKED)))
        kills = 0
        while kills < KILLS:
            turn = next(turns)
            killer = Killer(
                runner, calls_before=moments.randrange(calls[turn]), later_s=moments.uniform(0, LATEST_S)
            )
            target.speaks_up = killer
            answer = loop.through(**ASKED[turn])
            kills += killer.has_killed()
            access, stage = loop.records()
            assert (answer, access.ending) == (plain[turn], "completed")
            reasons[stage.action, stage.reason] += 1
    assert reasons["speculate", "runner_lost"] > KILLS / 2, "most fall within what an answer says"


def _calls_for(loop: Loop, target: ByteTarget, asked: dict[str, Any]) -> int:
    """How often the target is called for an answer whose runner lives."""
    target.asked.clear()
    loop.through(**asked)
    _, stage = loop.records()
    assert stage.accepted_tokens
    return len(target.asked)
