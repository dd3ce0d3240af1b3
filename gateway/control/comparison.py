"""A bucket's multiplier and what stands beside it, from the blocks of both arms.

Everything is taken from the store and not from a process's memory, so that every worker's answer is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

from gateway.evidence.engine_blocks import EngineBlock
from gateway.evidence.multiplier import (
    Interval,
    Sample,
    Speed,
    bootstrap_multiplier,
    paired_multiplier,
    what_is_missing,
)
from gateway.policy.blocks import REPLICA, SWITCHBACK
from gateway.policy.model import Action
from gateway.store.model import ArmBlock, StageGroup
from gateway.store.store import Store

NEWEST_BLOCKS = 100
"""Control blocks that a multiplier rests on at most; the newest, since load changes."""

_MOST_BLOCKS = 20 * NEWEST_BLOCKS
"""Speculated blocks in the time of those, of which there are many more."""


async def multiplier_of(store: Store, group: StageGroup) -> dict[str, Any]:
    """The multiplier of a group, with its interval and samples, or why there is none.

    Both arms are of the same time: from the first of the control blocks until now.

    Raises:
        StoreError: The store cannot be used now.
    """
    if group.action != Action.SPECULATE or group.control_backend is None:
        return _view(None, "only speculated requests have a multiplier", None, [], [])
    control = await store.stages.blocks(group, control=True, newest=NEWEST_BLOCKS)
    since = min((found.block.at for found in control), default=0.0)
    spec = await store.stages.blocks(group, control=False, newest=_MOST_BLOCKS, since=since)
    kind = SWITCHBACK if group.control_backend == group.backend else REPLICA
    if kind == REPLICA:
        spec, control = _of_the_same_blocks(spec, control)
    if reason := what_is_missing(_sample(spec), _sample(control)):
        return _view(None, reason, kind, spec, control)
    interval = await asyncio.to_thread(_interval, kind, _speeds(spec), _speeds(control))
    engine = await store.engine_blocks.of(group.backend, since=since)
    # A replica is an engine of its own, and its counter speaks for the control.
    plain_engine = (
        engine if kind == SWITCHBACK else await store.engine_blocks.of(group.control_backend, since=since)
    )
    return _view(interval, None, kind, spec, control) | {
        "ttft_ratio": ratio(_mean_first_byte(spec), _mean_first_byte(control)),
        "e2e_ratio": ratio(_seconds_per_token(spec), _seconds_per_token(control)),
        "engine_tokens_per_second": {
            "spec": _engine_rate(engine, spec),
            "control": _engine_rate(plain_engine, control),
        },
    }


@lru_cache(maxsize=256)
def _interval(kind: str, spec: tuple[Speed, ...], control: tuple[Speed, ...]) -> Interval:
    """Remembered, since resampling is slow and a page that polls mostly asks for the same again."""
    rng = Random(0)  # noqa: S311 - resampling, not a secret
    if kind == REPLICA:
        return paired_multiplier(tuple(zip(spec, control, strict=True)), rng)
    return bootstrap_multiplier(spec, control, rng)


def _of_the_same_blocks(
    spec: Sequence[ArmBlock], control: Sequence[ArmBlock]
) -> tuple[list[ArmBlock], list[ArmBlock]]:
    """The blocks in which both replicas answered: two servers are compared at the same moments only."""
    both = {found.block for found in spec} & {found.block for found in control}
    arms = ([found for found in arm if found.block in both] for arm in (spec, control))
    first, second = (sorted(arm, key=lambda found: (found.block.at, found.block.seconds)) for arm in arms)
    return first, second


def _sample(blocks: Sequence[ArmBlock]) -> Sample:
    return Sample(answers=sum(found.answers for found in blocks), blocks=len(blocks))


def _speeds(blocks: Sequence[ArmBlock]) -> tuple[Speed, ...]:
    return tuple((found.tokens, found.seconds) for found in blocks)


def _mean_first_byte(blocks: Sequence[ArmBlock]) -> float | None:
    return ratio(sum(found.first_byte_seconds for found in blocks), sum(found.streamed for found in blocks))


def _seconds_per_token(blocks: Sequence[ArmBlock]) -> float | None:
    return ratio(sum(found.total_seconds for found in blocks), sum(found.answer_tokens for found in blocks))


def _engine_rate(engine: Sequence[EngineBlock], arm: Sequence[ArmBlock]) -> float | None:
    """Tokens per second of the engine as a whole, while it was busy in the blocks of one arm."""
    blocks = {found.block for found in arm}
    seen = [found for found in engine if found.block in blocks]
    return ratio(sum(found.tokens for found in seen), sum(found.busy_seconds for found in seen))


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole`; None where either is missing, or `whole` is 0."""
    return None if part is None or not whole else part / whole


def _view(
    interval: Interval | None,
    reason: str | None,
    kind: str | None,
    spec: Sequence[ArmBlock],
    control: Sequence[ArmBlock],
) -> dict[str, Any]:
    samples = {"spec": _sample(spec), "control": _sample(control)}
    return {
        "value": interval.value if interval else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        **{f"n_{arm}": sample.answers for arm, sample in samples.items()},
        **{f"blocks_{arm}": sample.blocks for arm, sample in samples.items()},
        "control_kind": kind,
        "reason": reason,
        "ttft_ratio": None,
        "e2e_ratio": None,
        "engine_tokens_per_second": {"spec": None, "control": None},
    }
