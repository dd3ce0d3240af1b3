"""How much a demo asks, so that it ends in time on a slow machine too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.demo.measure import SHORTEST, Way

_SHORTEST_ANSWER = 18
_PLAIN = frozenset({Way.OFF, Way.SHADOW})
_PASSES_PER_SPECULATED_TOKEN = 0.8
"""Passes of plain length that a speculated token costs, over all workloads; the prefill included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much a demo asks.

    Attributes:
        prompts: Prompts of each workload; None for all of them.
        ways: How each of them is asked.
        curve_prompts: How many of them are asked with other K too.
        max_tokens: Longest answer.
        calibration_rounds: How often pass times are measured for each K, evenly over the run.
        calibration_tokens: Length of each answer that they are measured on.
        seconds: How long the answers may take in all; they are shortened to fit.
    """

    prompts: int | None
    ways: tuple[Way, ...]
    curve_prompts: int
    max_tokens: int
    calibration_rounds: int
    calibration_tokens: int
    seconds: float

    def answer_tokens(self, asked: Iterable[Way], pass_seconds: float) -> int:
        """Longest answer that lets all of `asked` end in time, given the seconds of a plain pass."""
        passes = sum(1 if way in _PLAIN else _PASSES_PER_SPECULATED_TOKEN for way in asked)
        return max(_SHORTEST_ANSWER, min(self.max_tokens, int(self.seconds / (passes * pass_seconds))))


FULL = Pace(
    prompts=None,
    ways=(*SHORTEST, Way.LOOP),
    curve_prompts=2,
    max_tokens=112,
    calibration_rounds=6,
    calibration_tokens=16,
    seconds=320,
)
QUICK = Pace(
    prompts=2,
    ways=SHORTEST,
    curve_prompts=0,
    max_tokens=48,
    calibration_rounds=1,
    calibration_tokens=20,
    seconds=35,
)
