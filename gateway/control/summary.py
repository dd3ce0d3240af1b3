"""What the stage records add up to: counts, acceptance, speeds, multipliers with their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.control.comparison import multiplier_of, ratio
from gateway.policy.model import DRAFTERS, Action, Mode
from gateway.store.curves import Curve
from gateway.store.model import ReasonCount, StageGroup
from gateway.store.stages import GroupKey, group_key
from gateway.store.store import Store


async def summary_of(store: Store) -> dict[str, Any]:
    """The summary of all stage records that the store holds.

    Raises:
        StoreError: The store cannot be used now.
    """
    stages = store.stages
    reasons, groups, curves = await stages.reasons(), await stages.groups(), await stages.curves()
    compared: dict[str, dict[GroupKey, Curve]] = {
        drafter: await stages.curves(compared=drafter) for drafter in DRAFTERS
    }
    return {
        "requests": _counts(reasons),
        "buckets": [
            await _bucket(store, group, curves.get(group_key(group)))
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


async def _bucket(store: Store, group: StageGroup, curve: Curve | None) -> dict[str, Any]:
    shown = asdict(group)
    tokens, seconds = shown.pop("timed_tokens"), shown.pop("timed_seconds")
    return {
        **shown,
        "acceptance_rate": ratio(group.accepted_tokens, group.draft_tokens),
        "tokens_per_second": ratio(tokens, seconds),
        "multiplier": await multiplier_of(store, group),
        "k_curve": curve,
    }
