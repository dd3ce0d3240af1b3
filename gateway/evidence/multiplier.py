"""Speculated against plain speed: the multiplier, its interval and its sample sizes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Literal, NamedTuple, TypeVar

from gateway.policy.blocks import Block

Key = TypeVar("Key")
Item = TypeVar("Item")
Arm = Literal["spec", "control"]
Speed = tuple[float, float]
"""(decode tokens, decode seconds) of one answer, or of all answers of one block."""

MINIMUM_SAMPLE = 5
"""Requests in each arm below which there is no multiplier."""

MINIMUM_BLOCKS = 5
"""Blocks in each arm below which there is no multiplier: load changes from block to block, and an interval
that is resampled from fewer of them says too little."""

_RESAMPLES = 1000
_WINDOW = 100
_MAX_BUCKETS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What must be equal for two requests' speeds to be compared.

    Attributes:
        control_backend: Whose plain answers are the control; another than `backend` for control by replica.
        load_band: As `gateway.evidence.loop_costs.load_band` names it.
    """

    model: str
    backend: str
    control_backend: str
    executor: str
    drafter: str
    k: int
    workload: str
    temperature_band: str
    load_band: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How much an arm rests on."""

    answers: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A multiplier at one moment.

    Attributes:
        value: None below the minimum sample; `reason` then says what is missing.
        spec: The speculated requests that it rests on. control: the plain ones.
    """

    value: float | None
    reason: str | None
    spec: Sample
    control: Sample


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


def what_is_missing(spec: Sample, control: Sample) -> str | None:
    """Why two arms make no multiplier yet; None when they do."""
    if min(spec.answers, control.answers) < MINIMUM_SAMPLE:
        return (
            f"needs {MINIMUM_SAMPLE} requests in each arm, "
            f"has {spec.answers} speculated and {control.answers} control"
        )
    if min(spec.blocks, control.blocks) < MINIMUM_BLOCKS:
        return (
            f"needs requests in {MINIMUM_BLOCKS} blocks of each arm, "
            f"has {spec.blocks} speculated and {control.blocks} control"
        )
    return None


class MultiplierBook:
    """The latest speeds of each bucket, by block.

    Memory is bounded: the newest blocks of each, oldest bucket out first.

    Plain speed depends on neither the drafter nor K, so buckets that differ only there share their
    control.
    """

    def __init__(self, *, window: int = _WINDOW, max_buckets: int = _MAX_BUCKETS) -> None:
        self._spec = _Windows[Bucket](window, max_buckets)
        self._control = _Windows[tuple[str, ...]](window, max_buckets)

    def observe(self, bucket: Bucket, arm: Arm, block: Block, tokens: int, seconds: float) -> None:
        """Remember one answer's decode speed. Without tokens or time there is none to remember."""
        if tokens <= 0 or not (0 < seconds < math.inf):
            return
        if arm == "spec":
            self._spec.add(bucket, block, (tokens, seconds))
        else:
            self._control.add(_plain(bucket), block, (tokens, seconds))

    def estimate(self, bucket: Bucket) -> Estimate:
        """The bucket's multiplier over the remembered answers."""
        spec, control = self._spec.of(bucket), self._control.of(_plain(bucket))
        samples = {"spec": _sample(spec), "control": _sample(control)}
        reason = what_is_missing(**samples)
        value = None if reason else _rate(spec) / _rate(control)
        return Estimate(value=value, reason=reason, **samples)


def bootstrap_multiplier(spec: Sequence[Speed], control: Sequence[Speed], rng: Random) -> Interval:
    """The multiplier of two independent samples; each arm is resampled by block.

    Answers of one block share the load of their minutes, so they are one draw and not many.

    Args:
        spec: The sums of each speculated block; not empty, times above 0.
        control: The sums of each control block; not empty, times above 0.
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
    """The multiplier of pairs: answers to the same prompt, or blocks of two replicas at the same time.

    Resampled by pair.

    Args:
        pairs: One (spec, control) pair of speeds for each prompt or block; not empty, times above 0.
        rng: Source of the resampling, so that a result can be repeated.
    """
    _refuse_empty(pairs=pairs)
    return _interval(paired_ratio(pairs), lambda: paired_ratio(_draw(pairs, rng)))


def paired_ratio(pairs: Sequence[tuple[Speed, Speed]]) -> float:
    """Speculated over plain speed of (speculated, plain) answers; not empty, times above 0."""
    return _tokens_per_second([spec for spec, _ in pairs]) / _tokens_per_second([plain for _, plain in pairs])


@dataclass(slots=True)
class _Sums:
    """The answers of one block."""

    answers: int = 0
    tokens: float = 0.0
    seconds: float = 0.0


class _Windows(Generic[Key]):
    """The newest blocks of the most recently seen keys."""

    def __init__(self, window: int, max_keys: int) -> None:
        self._window = window
        self._max_keys = max_keys
        self._blocks: OrderedDict[Key, OrderedDict[Block, _Sums]] = OrderedDict()

    def add(self, key: Key, block: Block, speed: Speed) -> None:
        blocks = self._blocks.setdefault(key, OrderedDict())
        sums = blocks.setdefault(block, _Sums())
        sums.answers += 1
        sums.tokens += speed[0]
        sums.seconds += speed[1]
        if len(blocks) > self._window:
            blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        if len(self._blocks) > self._max_keys:
            self._blocks.popitem(last=False)

    def of(self, key: Key) -> Sequence[_Sums]:
        return tuple(self._blocks.get(key, {}).values())


def _sample(blocks: Sequence[_Sums]) -> Sample:
    return Sample(answers=sum(block.answers for block in blocks), blocks=len(blocks))


def _rate(blocks: Sequence[_Sums]) -> float:
    return _tokens_per_second([(block.tokens, block.seconds) for block in blocks])


def _plain(bucket: Bucket) -> tuple[str, ...]:
    return (
        bucket.model,
        bucket.control_backend,
        bucket.executor,
        bucket.workload,
        bucket.temperature_band,
        bucket.load_band,
    )


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
