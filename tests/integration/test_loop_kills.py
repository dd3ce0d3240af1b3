"""kill -9 of the draft runner at 200 moments of answers that it drafts for: no client notices."""

from __future__ import annotations

import random
import threading
import time
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


def test_no_client_notices_a_killed_runner(runner: MortalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    decide_on_loops(monkeypatch, "fanout")
    moments = random.Random(7)
    reasons: Counter[tuple[str, str | None]] = Counter()
    with (
        served(ByteTarget(answer=ANSWER).app) as url,
        Gateway([backend_at(url)], runners=[runner]) as gateway,
    ):
        loop = Loop(gateway, int(url.rpartition(":")[2]))
        plain = [loop.plainly(**asked) for asked in ASKED]
        takes = _seconds_of(loop)
        for turn in range(KILLS):
            killing = threading.Timer(moments.uniform(0, takes), runner.kill)
            killing.start()
            answer = loop.through(**ASKED[turn % len(ASKED)])
            killing.join()
            access, stage = loop.records()
            assert (answer, access.ending) == (plain[turn % len(ASKED)], "completed")
            reasons[stage.action, stage.reason] += 1
    # At every stage of an answer: before its first token, within it, and once it was complete.
    assert reasons["speculate", "runner_lost"] > KILLS / 10
    assert len(reasons) > 2


def _seconds_of(loop: Loop) -> float:
    """How long an answer takes while nobody is killed."""
    begun = time.perf_counter()
    loop.through(**ASKED[0])
    loop.records()
    return time.perf_counter() - begun
