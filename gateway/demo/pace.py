"""How much a demo asks, so that it ends in time on a slow machine too."""

from __future__ import annotations

from dataclasses import dataclass

CALIBRATION_TOKENS = 32

_SHORTEST_ANSWER = 20
_PASSES_PER_TOKEN = 2.8
"""Passes that one answer token costs over the three modes, prefills included: off and shadow one each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much a demo asks.

    Attributes:
        prompts: Prompts of each workload; None for all of them.
        max_tokens: Longest answer.
        calibration_rounds: How often pass times are measured for each K, evenly over the run.
        seconds: How long the three modes may take in all; answers are shortened to fit.
    """

    prompts: int | None
    max_tokens: int
    calibration_rounds: int
    seconds: float

    def answer_tokens(self, prompts: int, pass_seconds: float) -> int:
        """Longest answer that lets `prompts` prompts end in time, given the seconds of a plain pass."""
        in_time = int(self.seconds / (prompts * pass_seconds * _PASSES_PER_TOKEN))
        return max(_SHORTEST_ANSWER, min(self.max_tokens, in_time))


FULL = Pace(prompts=None, max_tokens=112, calibration_rounds=3, seconds=360)
QUICK = Pace(prompts=2, max_tokens=48, calibration_rounds=2, seconds=40)
