"""What an engine says of one request (`usage` and `metrics`), read under our definitions of each number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

MIN_TIMED_TOKENS = 16
"""Shorter answers have no tokens per second: their decode time is mostly start and end."""

TOKENS_IN_FIRST_EMISSION = 1
"""Engines that report times emit one token from the prefill, speculating or not."""

_LARGEST = 2**53
"""Beyond it a number in JSON is no count and no time, and arithmetic on it could overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNumbers:
    """One request in the engine's own counts and times. What it did not report, or garbled, is None.

    Attributes:
        decode_tokens: Tokens after the first emission.
        decode_seconds: From the first emission to the last token.
        tokens_per_second: decode_tokens / decode_seconds; None for fewer than 16 tokens.
        passes: Decode forwards, as counted by the engine.
        steps: Passes that verified at least one draft token.
        accepted_by_position: i-th entry = steps that accepted at least i + 1 drafts.
        acceptance_rate: accepted_tokens / draft_tokens; None when nothing was drafted.
        mean_acceptance_length: 1 + accepted_tokens / steps; None without a step.
    """

    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    decode_tokens: int | None = None
    decode_seconds: float | None = None
    tokens_per_second: float | None = None
    passes: int | None = None
    steps: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_by_position: tuple[int, ...] | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None


def read_engine_metrics(usage: object, metrics: object, stream_seconds: float | None = None) -> EngineNumbers:
    """Read the `usage` and `metrics` of an answer, each of them any JSON value or None. Never raises.

    Args:
        usage: The answer's.
        metrics: The same.
        stream_seconds: From its first text to its end, as seen from here; counts where the engine reports
            no decode time of its own.
    """
    usage, metrics = _mapping(usage), _mapping(metrics)
    completion_tokens = _count(usage.get("completion_tokens"))
    decode_tokens = _decode_tokens(completion_tokens)
    reported = _decode_seconds(metrics, decode_tokens)
    decode_seconds = stream_seconds if reported is None else reported
    counts = _read_speculation(_mapping(metrics.get("speculative_decoding")))
    return EngineNumbers(
        completion_tokens=completion_tokens,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        decode_tokens=decode_tokens,
        decode_seconds=decode_seconds,
        tokens_per_second=decode_speed(completion_tokens, decode_tokens, decode_seconds),
        passes=_count(metrics.get("num_passes")),
        steps=counts.steps if counts else None,
        draft_tokens=counts.drafted if counts else None,
        accepted_tokens=counts.accepted if counts else None,
        accepted_by_position=counts.by_position if counts else None,
        acceptance_rate=acceptance_rate(counts.accepted, counts.drafted) if counts else None,
        mean_acceptance_length=mean_acceptance_length(counts.accepted, counts.steps) if counts else None,
    )


def acceptance_rate(accepted: int, drafted: int) -> float | None:
    """Accepted over proposed draft tokens; None when nothing was proposed."""
    return accepted / drafted if drafted else None


def mean_acceptance_length(accepted: int, steps: int) -> float | None:
    """Tokens emitted per verifying step, correction or bonus included; None without a step."""
    return 1 + accepted / steps if steps else None


def decode_speed(
    completion_tokens: int | None, decode_tokens: int | None, decode_seconds: float | None
) -> float | None:
    """Decode tokens per second; None below 16 tokens, or where a count or time is missing."""
    if completion_tokens is None or completion_tokens < MIN_TIMED_TOKENS:
        return None
    if not decode_tokens or not decode_seconds:
        return None
    return decode_tokens / decode_seconds


@dataclass(frozen=True, slots=True)
class _Counts:
    steps: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...] | None


def _read_speculation(reported: Mapping[str, object]) -> _Counts | None:
    """The counts, only if they can all be true together: half of a wrong report is no evidence."""
    steps = _count(reported.get("num_spec_steps"))
    drafted = _count(reported.get("num_draft_tokens"))
    accepted = _count(reported.get("num_accepted_draft_tokens"))
    if steps is None or drafted is None or accepted is None:
        return None
    if steps > drafted or accepted > drafted or (drafted and not steps):
        return None
    if (histogram := reported.get("acceptance_histogram")) is None:
        return _Counts(steps, drafted, accepted, None)
    exactly = _counts(histogram)
    if sum(exactly) != steps or sum(j * n for j, n in enumerate(exactly)) != accepted:
        return None
    return _Counts(steps, drafted, accepted, _at_least(exactly))


def _at_least(exactly: list[int]) -> tuple[int, ...]:
    """From "steps that accepted exactly j" to "steps that accepted at least i + 1"."""
    return tuple(accumulate(reversed(exactly)))[::-1][1:]


def _decode_tokens(completion_tokens: int | None) -> int | None:
    if completion_tokens is None:
        return None
    return max(completion_tokens - TOKENS_IN_FIRST_EMISSION, 0)


def _decode_seconds(metrics: Mapping[str, object], decode_tokens: int | None) -> float | None:
    generation_ms = _milliseconds(metrics.get("generation_time_ms"))
    if generation_ms is None and decode_tokens is not None:
        per_token_ms = _milliseconds(metrics.get("mean_itl_ms"))
        generation_ms = None if per_token_ms is None else per_token_ms * decode_tokens
    return None if generation_ms is None else generation_ms / 1000


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST else None


def _counts(value: object) -> list[int]:
    """A list of counts; empty when it is anything else."""
    found = [_count(item) for item in value] if isinstance(value, list) else []
    counts = [count for count in found if count is not None]
    return counts if len(counts) == len(found) else []


def _milliseconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _LARGEST else None
