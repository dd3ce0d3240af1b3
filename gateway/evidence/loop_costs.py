"""What a step of `gateway_loop` costs, and what the loop is worth: measured and predicted, as values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.evidence.predict import best_multiplier
from gateway.fleet.model import instance_key

MOST_DRAFTS = 8
"""Longest draft whose verification is timed; a larger K has no prediction."""

_BANDS = {1: "1", 4: "2-4", 16: "5-16"}
"""Most requests under way to the band's name."""


def load_band(running: int) -> str:
    """The band of a number of requests under way at one backend, the one that asks included."""
    tops = list(_BANDS)
    place = bisect_left(tops, running)
    return _BANDS[tops[place]] if place < len(tops) else "17+"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostKey:
    """What the cost of a step depends on.

    Attributes:
        strategy: How the target is made to verify.
        band: As `load_band` names it.
        instance: Of the backend; empty where it has but one.
    """

    backend: str
    model: str
    strategy: str
    drafter: str
    band: str
    instance: str = ""

    @property
    def place(self) -> str:
        """The instance's key."""
        return instance_key(self.backend, self.instance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Seconds, measured on one backend at one load, on a prompt of our own.

    Attributes:
        measured_at: Unix time.
        expires_at: Unix time from which it counts no more.
        context_tokens: Length of the prompt.
        plain_seconds: One token of plain decoding.
        verify_seconds: Drafts in a step to the target's call.
        draft_seconds: Drafts in a step to drafting and the way to the draft runner and back.
    """

    key: CostKey
    measured_at: float
    expires_at: float
    context_tokens: int
    plain_seconds: float
    verify_seconds: Mapping[int, float]
    draft_seconds: Mapping[int, float]

    @property
    def pass_seconds(self) -> dict[int, float]:
        """Tokens fed in a step (1 + drafts) to its seconds, drafting and round trip included."""
        return {
            1 + drafts: seconds + self.draft_seconds[drafts]
            for drafts, seconds in sorted(self.verify_seconds.items())
        }

    def best(self, k: int) -> float:
        """The multiplier if every draft of up to `k` tokens were accepted; `k` is MOST_DRAFTS at most."""
        return best_multiplier(k, self.pass_seconds, self.plain_seconds)


def costs_in_words(calibration: Calibration) -> str:
    """A calibration's numbers in one line."""
    steps = ", ".join(
        f"{seconds * 1000:.1f} ms with {width - 1}" for width, seconds in calibration.pass_seconds.items()
    )
    key = calibration.key
    return (
        f"{key.strategy} with {key.drafter} at load {key.band}: a plain token "
        f"{calibration.plain_seconds * 1000:.1f} ms; a step by drafts: {steps}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthKey:
    """What a predicted multiplier is about.

    Attributes:
        workload: The kind of work of the answers that it was predicted from.
    """

    cost: CostKey
    workload: str
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """A predicted multiplier.

    Attributes:
        low: Lower end of its 95 % bootstrap interval over answers.
        answers: Shadow answers that it rests on.
    """

    value: float
    low: float
    answers: int
