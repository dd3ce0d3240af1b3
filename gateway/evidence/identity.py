"""Are two answers the same, and if not, is it a tie of the target's that rounding decides? (design.md 9)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

TIE_MARGIN = 1e-3


class Likeness(StrEnum):
    """How two answers to one prompt compare."""

    EQUAL = "equal"
    TIE = "tie"
    """They part where the target itself is undecided; counts as identical, and is reported."""
    DIFFERENT = "different"


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first position at which the ids differ, the end of the shorter one included; None if equal."""
    for position, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


def likeness(left: Sequence[int], right: Sequence[int], best_logprobs: Sequence[float]) -> Likeness:
    """Compare two answers.

    Args:
        left: Token ids of one answer.
        right: Token ids of the other.
        best_logprobs: The target's two best log-probabilities at the first difference; fewer than two
            when they are not known, and then no difference is excused.
    """
    if first_difference(left, right) is None:
        return Likeness.EQUAL
    best = sorted(best_logprobs, reverse=True)[:2]
    return Likeness.TIE if len(best) == 2 and best[0] - best[1] < TIE_MARGIN else Likeness.DIFFERENT
