"""What the stage records add up to: counts, acceptance, speeds, multipliers with their evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from random import Random
from typing import Any

from gateway.evidence.multiplier import MINIMUM_SAMPLE, Interval, Speed, bootstrap_multiplier
from gateway.policy.model import DRAFTERS, Action, Mode
from gateway.store.curves import Curve
from gateway.store.model import ReasonCount, StageGroup
from gateway.store.stages import GroupKey, StageRows, group_key

NEWEST_SPEEDS = 100
"""Answers of each arm that a multiplier rests on at most; the newest, since load changes."""

_CONTROL_KIND = "switchback"


async def summary_of(stages: StageRows) -> dict[str, Any]:
    """The summary of all stage records that the store holds.

    Raises:
        StoreError: The store cannot be used now.
    """
    reasons, groups, curves = await stages.reasons(), await stages.groups(), await stages.curves()
    compared: dict[str, dict[GroupKey, Curve]] = {
        drafter: await stages.curves(compared=drafter) for drafter in DRAFTERS
    }
    return {
        "requests": _counts(reasons),
        "buckets": [
            await _bucket(stages, group, curves.get(group_key(group)))
            | {"compared": _of_group(group, compared)}
            for group in groups
        ],
        "shadow_skipped": _by_reason(reasons, Mode.SHADOW, Action.SKIP),
        "bypassed": _by_reason(reasons, Mode.PROD, Action.BYPASS),
    }


def _of_group(group: StageGroup, compared: Mapping[str, Mapping[GroupKey, Curve]]) -> dict[str, Curve] | None:
    """The curve of every further drafter that the group's answers were replayed for."""
    key = group_key(group)
    return {drafter: curves[key] for drafter, curves in compared.items() if key in curves} or None


def _counts(reasons: Sequence[ReasonCount]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for row in reasons:
        actions = counts.setdefault(row.mode, {})
        actions[row.action] = actions.get(row.action, 0) + row.n
    return counts


def _by_reason(reasons: Sequence[ReasonCount], mode: Mode, action: Action) -> dict[str, int]:
    return {row.reason or "": row.n for row in reasons if (row.mode, row.action) == (mode, action)}


async def _bucket(stages: StageRows, group: StageGroup, curve: Curve | None) -> dict[str, Any]:
    shown = asdict(group)
    tokens, seconds = shown.pop("timed_tokens"), shown.pop("timed_seconds")
    return {
        **shown,
        "acceptance_rate": _ratio(group.accepted_tokens, group.draft_tokens),
        "tokens_per_second": _ratio(tokens, seconds),
        "multiplier": await _multiplier(stages, group),
        "k_curve": curve,
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


async def _multiplier(stages: StageRows, group: StageGroup) -> dict[str, Any]:
    """Taken from the store and not from a process's memory, so that every worker's answer is the same."""
    if group.action != Action.SPECULATE:
        return _no_multiplier("only speculated requests have a multiplier", 0, 0)
    spec = await stages.speeds(group, control=False, newest=NEWEST_SPEEDS)
    control = await stages.speeds(group, control=True, newest=NEWEST_SPEEDS)
    sizes = len(spec), len(control)
    if min(sizes) < MINIMUM_SAMPLE:
        reason = (
            f"needs {MINIMUM_SAMPLE} requests in each arm, has {sizes[0]} speculated and {sizes[1]} control"
        )
        return _no_multiplier(reason, *sizes)
    interval = await asyncio.to_thread(_interval, tuple(spec), tuple(control))
    return _multiplier_view(interval, None, *sizes)


@lru_cache(maxsize=256)
def _interval(spec: tuple[Speed, ...], control: tuple[Speed, ...]) -> Interval:
    """Remembered, since resampling is slow and a page that polls mostly asks for the same again."""
    return bootstrap_multiplier(spec, control, Random(0))  # noqa: S311 - resampling, not a secret


def _no_multiplier(reason: str, n_spec: int, n_control: int) -> dict[str, Any]:
    return _multiplier_view(None, reason, n_spec, n_control)


def _multiplier_view(
    interval: Interval | None, reason: str | None, n_spec: int, n_control: int
) -> dict[str, Any]:
    return {
        "value": interval.value if interval else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "n_spec": n_spec,
        "n_control": n_control,
        "control_kind": _CONTROL_KIND,
        "reason": reason,
    }
