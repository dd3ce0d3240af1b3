"""Speculated against plain speed: the multiplier, its interval and its sample sizes."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Literal, NamedTuple, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")
Arm = Literal["spec", "control"]
Speed = tuple[float, float]
"""(decode tokens, decode seconds) of one answer."""

MINIMUM_SAMPLE = 5
"""Requests in each arm below which the book gives no multiplier."""

_RESAMPLES = 1000
_WINDOW = 200
_MAX_BUCKETS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What must be equal for two requests' speeds to be compared."""

    model: str
    backend: str
    executor: str
    drafter: str
    k: int
    workload: str
    temperature_band: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A multiplier at one moment.

    Attributes:
        value: None below the minimum sample; `reason` then says what is missing.
        n_spec: Speculated requests it rests on. n_control: plain ones.
    """

    value: float | None
    reason: str | None
    n_spec: int
    n_control: int


class Interval(NamedTuple):
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def temperature_band(temperature: float | None) -> str:
    """Greedy, up to 0.5, up to 1, or above; an unstated temperature is OpenAI's default of 1."""
    if temperature is None:
        return "0.5-1"
    if temperature == 0:
        return "greedy"
    if temperature <= 0.5:
        return "0-0.5"
    return "0.5-1" if temperature <= 1 else "above 1"


class MultiplierBook:
    """The latest speeds of each bucket. Memory is bounded: a window for each, oldest bucket out first.

    Plain speed depends on neither the drafter nor K, so buckets that differ only there share their
    control.
    """

    def __init__(self, *, window: int = _WINDOW, max_buckets: int = _MAX_BUCKETS) -> None:
        self._spec = _Windows[Bucket](window, max_buckets)
        self._control = _Windows[tuple[str, ...]](window, max_buckets)

    def observe(self, bucket: Bucket, arm: Arm, tokens: int, seconds: float) -> None:
        """Remember one answer's decode speed. Without tokens or time there is none to remember."""
        if tokens <= 0 or not (0 < seconds < math.inf):
            return
        if arm == "spec":
            self._spec.add(bucket, (tokens, seconds))
        else:
            self._control.add(_plain(bucket), (tokens, seconds))

    def estimate(self, bucket: Bucket) -> Estimate:
        """The bucket's multiplier over the remembered answers."""
        spec, control = self._spec.of(bucket), self._control.of(_plain(bucket))
        sizes = {"n_spec": len(spec), "n_control": len(control)}
        if min(len(spec), len(control)) < MINIMUM_SAMPLE:
            reason = (
                f"needs {MINIMUM_SAMPLE} requests in each arm, "
                f"has {len(spec)} speculated and {len(control)} control"
            )
            return Estimate(value=None, reason=reason, **sizes)
        return Estimate(value=_tokens_per_second(spec) / _tokens_per_second(control), reason=None, **sizes)


def bootstrap_multiplier(spec: Sequence[Speed], control: Sequence[Speed], rng: Random) -> Interval:
    """The multiplier of two independent samples; each arm is resampled by answer.

    Args:
        spec: Speeds of speculated answers; not empty, times above 0.
        control: Speeds of plain answers; not empty, times above 0.
        rng: Source of the resampling, so that a result can be repeated.
    """
    _refuse_empty(spec=spec, control=control)

    def resampled() -> float:
        return _tokens_per_second(_draw(spec, rng)) / _tokens_per_second(_draw(control, rng))

    return _interval(_tokens_per_second(spec) / _tokens_per_second(control), resampled)


def bootstrap_rate(speeds: Sequence[Speed], rng: Random) -> Interval:
    """Decode tokens per second over some answers; resampled by answer.

    Args:
        speeds: One for each answer; not empty, times above 0.
        rng: Source of the resampling, so that a result can be repeated.
    """
    _refuse_empty(speeds=speeds)
    return _interval(_tokens_per_second(speeds), lambda: _tokens_per_second(_draw(speeds, rng)))


def paired_multiplier(pairs: Sequence[tuple[Speed, Speed]], rng: Random) -> Interval:
    """The multiplier of (speculated, plain) answers to the same prompts; resampled by pair.

    Args:
        pairs: One (spec, control) pair of speeds for each prompt; not empty, times above 0.
        rng: Source of the resampling, so that a result can be repeated.
    """
    _refuse_empty(pairs=pairs)
    return _interval(paired_ratio(pairs), lambda: paired_ratio(_draw(pairs, rng)))


def paired_ratio(pairs: Sequence[tuple[Speed, Speed]]) -> float:
    """Speculated over plain speed of (speculated, plain) answers; not empty, times above 0."""
    return _tokens_per_second([spec for spec, _ in pairs]) / _tokens_per_second([plain for _, plain in pairs])


class _Windows(Generic[Key]):
    """The last few speeds of the most recently seen keys."""

    def __init__(self, window: int, max_keys: int) -> None:
        self._window = window
        self._max_keys = max_keys
        self._speeds: OrderedDict[Key, deque[Speed]] = OrderedDict()

    def add(self, key: Key, speed: Speed) -> None:
        self._speeds.setdefault(key, deque(maxlen=self._window)).append(speed)
        self._speeds.move_to_end(key)
        if len(self._speeds) > self._max_keys:
            self._speeds.popitem(last=False)

    def of(self, key: Key) -> Sequence[Speed]:
        return self._speeds.get(key, ())


def _plain(bucket: Bucket) -> tuple[str, ...]:
    return (bucket.model, bucket.backend, bucket.executor, bucket.workload, bucket.temperature_band)


def _tokens_per_second(speeds: Sequence[Speed]) -> float:
    return sum(tokens for tokens, _ in speeds) / sum(seconds for _, seconds in speeds)


def _draw(items: Sequence[Item], rng: Random) -> list[Item]:
    return rng.choices(items, k=len(items))


def _interval(value: float, resampled: Callable[[], float]) -> Interval:
    ratios = sorted(resampled() for _ in range(_RESAMPLES))
    return Interval(value, ratios[round(0.025 * (_RESAMPLES - 1))], ratios[round(0.975 * (_RESAMPLES - 1))])


def _refuse_empty(**samples: Sequence[object]) -> None:
    for name, sample in samples.items():
        if not sample:
            raise ValueError(f"{name} is empty; a multiplier needs at least one answer in each arm")
