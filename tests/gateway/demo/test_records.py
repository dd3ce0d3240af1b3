from collections.abc import Mapping
from typing import Any

import pytest

from gateway.demo.records import Replay, collect, read_stage
from tests.fakes.clock import FakeClock

SHADOW: dict[str, Any] = {
    "request_id": "r1",
    "action": "would_speculate",
    "reason": None,
    "drafter": "ngram",
    "steps": 7,
    "draft_tokens": 30,
    "accepted_tokens": 12,
    "accepted_by_position": [5, 4, 2, 1, 0],
    "decode_tokens": 40,
    "decode_seconds": 2.5,
    "k_curve": {"5": {"passes": 28, "passes_by_drafts": {"0": 21, "5": 7}}},
    "compared": {
        "suffix": {
            "steps": 9,
            "draft_tokens": 20,
            "accepted_tokens": 15,
            "curve": {"5": {"passes": 25, "passes_by_drafts": {"0": 16, "3": 9}}},
        },
        "draft_model": {"reason": "runner_unavailable"},
    },
}
SKIPPED = dict.fromkeys(SHADOW) | {"request_id": "r2", "action": "skip", "reason": "queue_full"}


def test_a_replayed_answer_is_read_with_its_curve() -> None:
    stage = read_stage(SHADOW)

    assert (stage.action, stage.counts, stage.decode_tokens) == ("would_speculate", (7, 30, 12), 40)
    assert stage.accepted_by_position == (5, 4, 2, 1, 0)
    assert stage.replays["ngram"] == Replay(
        steps=7, draft_tokens=30, accepted_tokens=12, passes_by_drafts={5: {0: 21, 5: 7}}
    )


def test_other_drafters_replays_are_read_beside_it() -> None:
    stage = read_stage(SHADOW)

    assert set(stage.replays) == {"ngram", "suffix"}
    assert stage.replays["suffix"].passes_by_drafts == {5: {0: 16, 3: 9}}
    assert stage.not_replayed == {"draft_model": "runner_unavailable"}
    assert set(read_stage(SHADOW | {"compared": None}).replays) == {"ngram"}


def test_a_skipped_answer_is_read_as_zeros_with_its_reason() -> None:
    stage = read_stage(SKIPPED)

    assert (stage.action, stage.reason, stage.counts) == ("skip", "queue_full", (0, 0, 0))
    assert stage.accepted_by_position == ()
    assert stage.replays == {}


class LateRecords:
    """Records that can be found from some moment on."""

    def __init__(self, clock: FakeClock, appears_at: Mapping[str, float]) -> None:
        self._clock = clock
        self._appears_at = appears_at

    def find(self, request_id: str) -> dict[str, Any] | None:
        there = self._clock() >= self._appears_at.get(request_id, float("inf"))
        return SHADOW | {"request_id": request_id} if there else None


@pytest.mark.parametrize(
    ("appears_at", "found"),
    [({"r1": 0, "r2": 3}, {"r1", "r2"}), ({"r2": 0}, {"r2"}), ({"r1": 0, "r2": 99}, {"r1"}), ({}, set())],
)
def test_records_are_waited_for_until_the_time_is_up(appears_at: dict[str, float], found: set[str]) -> None:
    clock = FakeClock(0)
    late = LateRecords(clock, appears_at)

    stages = collect(["r1", "r2"], late.find, time_limit_s=5, clock=clock, pause=clock.advance)

    assert set(stages) == found
    assert clock() < 6
