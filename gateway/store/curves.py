"""K curves of shadow records, summed by the database, so that no reader has to hold the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Float, Integer, Label, RowMapping, Select, cast, func, select

from gateway.store.tables import stage_records

CURVE_KS = range(1, 9)
"""The K values that replay scores."""

NEWEST = 10_000
"""Records that a summed curve rests on at most: reading JSON costs more than reading columns."""

Curve = Mapping[str, Mapping[str, Any]]

COUNTED = stage_records.c.looping.is_not(True)
"""Looping answers flatter every drafter that copies; where nobody could tell, an answer counts."""

_COUNTS = ("passes", "steps", "draft_tokens", "accepted_tokens")


def summed_curves(grouped_by: tuple[str, ...], compared: str | None = None) -> Select[Any]:
    """The query whose rows `curve_of` reads, one for each group.

    Args:
        grouped_by: Columns in which the records of a group agree.
        compared: Whose curves; the record's own drafter's if None, else those of this further one.
    """
    column = stage_records.c.k_curve if compared is None else stage_records.c.compared
    curve = column if compared is None else column[(compared, "curve")]
    newest = (
        select(stage_records, curve.label("curve"))
        .where(column.is_not(None), COUNTED)
        .order_by(stage_records.c.id.desc())
        .limit(NEWEST)
        .subquery()
    )
    key = [newest.c[name] for name in grouped_by]
    sums: list[Label[Any]] = []
    for k in CURVE_KS:
        sums += [_sum(newest.c.curve, k, name) for name in _COUNTS]
        sums += [_sum(newest.c.curve, k, "passes_by_drafts", str(drafts)) for drafts in range(k + 1)]
        tokens = _number(newest.c.curve, k, "tokens_per_pass") * _number(newest.c.curve, k, "passes")
        sums.append(func.sum(tokens).label(_label(k, "tokens")))
    return select(*key, *sums).group_by(*key)


def curve_of(row: RowMapping) -> Curve:
    """The merged curve in one row, in the shape of a stage record's; without K values that have no pass."""
    return {str(k): _point(row, k) for k in CURVE_KS if row[_label(k, "passes")]}


def _point(row: RowMapping, k: int) -> Mapping[str, Any]:
    counts = {name: row[_label(k, name)] or 0 for name in _COUNTS}
    by_drafts = {str(drafts): row[_label(k, "passes_by_drafts", str(drafts))] for drafts in range(k + 1)}
    drafted, tokens = counts["draft_tokens"], row[_label(k, "tokens")]
    return {
        **counts,
        "tokens_per_pass": None if tokens is None else tokens / counts["passes"],
        "acceptance_rate": counts["accepted_tokens"] / drafted if drafted else None,
        "passes_by_drafts": {drafts: passes for drafts, passes in by_drafts.items() if passes},
    }


def _sum(curve: Any, k: int, *path: str) -> Label[Any]:
    return func.sum(cast(curve[(str(k), *path)].as_string(), Integer)).label(_label(k, *path))


def _number(curve: Any, k: int, name: str) -> Any:
    return cast(curve[(str(k), name)].as_string(), Float)


def _label(k: int, *path: str) -> str:
    return "_".join((str(k), *path))
