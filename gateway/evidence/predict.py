"""The multiplier that a replay predicts, from pass counts and measured pass times (design.md 9)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from gateway.evidence.multiplier import Interval, paired_multiplier


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted multiplier, or the reason why there is none."""

    value: float | None
    reason: str | None = None


def predicted_multiplier(
    decode_tokens: int,
    passes_by_drafts: Mapping[int, int],
    pass_seconds: Mapping[int, float],
    plain_seconds: float | None = None,
) -> Prediction:
    """Plain decode time over speculated decode time for the same tokens.

    Args:
        decode_tokens: Tokens after the first emission; a plain server takes one pass for each.
        passes_by_drafts: Drafts in a pass to how many such passes the speculated answer takes.
        pass_seconds: Tokens fed in a pass (1 + drafts) to its measured seconds, drafting and round
            trip included. Widths between two measured ones are interpolated; others are refused.
        plain_seconds: Seconds of a plain pass, where it is another call than a pass without drafts;
            None: it is the same.
    """
    if decode_tokens <= 0 or not any(passes_by_drafts.values()):
        return Prediction(None, "no decode pass was replayed")
    widths = {1, *(1 + drafts for drafts, passes in passes_by_drafts.items() if passes)}
    unknown = sorted(width for width in widths if not _within(width, pass_seconds))
    if unknown:
        measured = ", ".join(map(str, sorted(pass_seconds))) or "none"
        return Prediction(
            None,
            f"no pass time for {', '.join(map(str, unknown))} tokens per pass (measured: {measured}); "
            "pass times are not extrapolated",
        )
    plain = _seconds(1, pass_seconds) if plain_seconds is None else plain_seconds
    return Prediction(decode_tokens * plain / _speculated_seconds(passes_by_drafts, pass_seconds))


@dataclass(frozen=True, slots=True)
class Replayed:
    """One answer as it would have been speculated.

    Attributes:
        decode_tokens: Tokens after the first emission; more than none.
        passes_by_drafts: Drafts in a pass to how many such passes it takes; more than none.
    """

    decode_tokens: float
    passes_by_drafts: Mapping[int, int]


def predicted_interval(
    answers: Sequence[Replayed], pass_seconds: Mapping[int, float], plain_seconds: float, rng: Random
) -> Interval:
    """The predicted multiplier of several answers, with its interval bootstrapped over them.

    Args:
        answers: Not empty; every width of theirs is within the measured ones.
        pass_seconds: As for `predicted_multiplier`.
        plain_seconds: Seconds of a plain pass.
        rng: Source of the resampling, so that a result can be repeated.
    """
    pairs = [
        (
            (answer.decode_tokens, _speculated_seconds(answer.passes_by_drafts, pass_seconds)),
            (answer.decode_tokens, answer.decode_tokens * plain_seconds),
        )
        for answer in answers
    ]
    return paired_multiplier(pairs, rng)


def best_multiplier(k: int, pass_seconds: Mapping[int, float], plain_seconds: float) -> float:
    """The multiplier of an answer whose every draft is accepted, at the length of up to `k` that pays most.

    No replay can predict more.

    Args:
        k: Most drafts in a pass; 1 + k is within the measured widths.
        pass_seconds: As for `predicted_multiplier`, from width 1 on.
        plain_seconds: Seconds of a plain pass.
    """
    return max(width * plain_seconds / _seconds(width, pass_seconds) for width in range(1, k + 2))


def _speculated_seconds(passes_by_drafts: Mapping[int, int], pass_seconds: Mapping[int, float]) -> float:
    return sum(
        passes * _seconds(1 + drafts, pass_seconds) for drafts, passes in passes_by_drafts.items() if passes
    )


def _within(width: int, pass_seconds: Mapping[int, float]) -> bool:
    return bool(pass_seconds) and min(pass_seconds) <= width <= max(pass_seconds)


def _seconds(width: int, pass_seconds: Mapping[int, float]) -> float:
    """The measured time, or the straight line between the two measured neighbours."""
    if width in pass_seconds:
        return pass_seconds[width]
    measured = sorted(pass_seconds)
    upper = bisect_left(measured, width)
    low, high = measured[upper - 1], measured[upper]
    share = (width - low) / (high - low)
    return pass_seconds[low] * (1 - share) + pass_seconds[high] * share
