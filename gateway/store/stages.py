"""Stage records: written in batches, read newest first, summed by the database, dropped when old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import BigInteger, Column, ColumnElement, Integer, Select, cast, func, insert, select

from gateway.evidence.comparable import speed_counts
from gateway.evidence.loop_costs import load_band
from gateway.evidence.multiplier import temperature_band
from gateway.policy.blocks import Block
from gateway.store.curves import COUNTED, Curve, curve_of, summed_curves
from gateway.store.database import Database, delete_picked, unbroken
from gateway.store.model import ArmBlock, ReasonCount, ReplayedAnswer, StageGroup, StageQuery
from gateway.store.tables import stage_records
from gateway.telemetry.record import StageRecord

MAX_GROUPS = 500

_GROUPED_BY = (
    stage_records.c.model,
    stage_records.c.backend,
    stage_records.c.workload,
    stage_records.c.drafter,
    stage_records.c.executor,
    stage_records.c.mode,
    stage_records.c.action,
    stage_records.c.k,
    stage_records.c.temperature_band,
    stage_records.c.load_band,
    stage_records.c.control_backend,
)
_SUMMED = (
    stage_records.c.draft_tokens,
    stage_records.c.accepted_tokens,
    stage_records.c.timed_tokens,
    stage_records.c.timed_seconds,
)

_COPIED = (
    *("at", "request_id", "mode", "action", "reason", "model", "backend", "workload", "drafter", "executor"),
    *("k", "draft_tokens", "accepted_tokens", "looping", "k_curve", "compared", "control_backend"),
    *("block_at", "block_seconds", "first_byte_seconds", "total_seconds", "completion_tokens"),
)

_LONG = ("k_curve", "compared")
"""Kept out of the payload, and summed from columns of their own."""

Row = dict[str, Any]
GroupKey = tuple[str | int | None, ...]


def group_key(group: StageGroup) -> GroupKey:
    """What `StageRows.curves` knows a group by."""
    return tuple(getattr(group, column.name) for column in _GROUPED_BY)


def row_of(record: StageRecord) -> Row:
    """A record as the table keeps it.

    Raises:
        TypeError: It holds something that JSON cannot say.
    """
    payload = orjson.loads(orjson.dumps(record))
    row: Row = {name: payload[name] for name in _COPIED}
    row["temperature_band"] = temperature_band(record.temperature)
    row["load_band"] = None if record.running is None else load_band(record.running)
    if speed_counts(record):
        row |= {"timed_tokens": record.decode_tokens, "timed_seconds": record.decode_seconds}
    else:
        row |= {"timed_tokens": None, "timed_seconds": None}
    for name in _LONG:
        del payload[name]
    return {**row, "payload": payload}


class StageRows:
    """The stage_records table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def add(self, rows: Sequence[Row]) -> None:
        """Keep rows made by `row_of`: all of them, or none."""
        async with self._database.writing() as connection:
            await connection.execute(insert(stage_records), list(rows))

    @unbroken
    async def keeps(self, row: Row) -> bool:
        """Whether a row made by `row_of` is there: no two are of one request and one moment."""
        table = stage_records.c
        same = (table.request_id == row["request_id"], table.at == row["at"])
        async with self._database.reading() as connection:
            return await connection.scalar(select(table.id).where(*same).limit(1)) is not None

    @unbroken
    async def find(self, query: StageQuery) -> list[dict[str, Any]]:
        """The records that a query asks for, as JSON values, newest first."""
        table = stage_records.c
        wanted = (
            select(table.payload, *(table[name] for name in _LONG))
            .order_by(table.at.desc(), table.id.desc())
            .limit(query.limit)
        )
        for column in (table.mode, table.action, table.model, table.request_id):
            if (value := getattr(query, column.name)) is not None:
                wanted = wanted.where(column == value)
        if query.after is not None:
            wanted = wanted.where(table.at > query.after)
        async with self._database.reading(long=True) as connection:
            rows = await connection.execute(wanted)
            return [{**payload, **dict(zip(_LONG, long, strict=True))} for payload, *long in rows]

    @unbroken
    async def reasons(self) -> tuple[ReasonCount, ...]:
        """How many records there are, by mode, action and reason."""
        table = stage_records.c
        key = (table.mode, table.action, table.reason)
        counted = select(*key, func.count().label("n")).group_by(*key).order_by(*key)
        async with self._database.reading(long=True) as connection:
            rows = await connection.execute(counted)
            return tuple(ReasonCount(**row) for row in rows.mappings())

    @unbroken
    async def groups(self) -> tuple[StageGroup, ...]:
        """Sums over comparable records; the largest groups when there are very many."""
        sums = [_sum(column, COUNTED).label(column.name) for column in _SUMMED]
        looping = func.count().filter(stage_records.c.looping.is_(True)).label("looping")
        grouped = (
            select(*_GROUPED_BY, func.count().label("n"), looping, *sums)
            .group_by(*_GROUPED_BY)
            .order_by(func.count().desc(), *_GROUPED_BY)
            .limit(MAX_GROUPS)
        )
        async with self._database.reading(long=True) as connection:
            rows = await connection.execute(grouped)
            return tuple(StageGroup(**row) for row in rows.mappings())

    @unbroken
    async def curves(self, compared: str | None = None) -> dict[GroupKey, Curve]:
        """The K curves of the newest records that carry one, summed for each group.

        Args:
            compared: A drafter that the records' own was compared with, for its curves instead.
        """
        names = tuple(column.name for column in _GROUPED_BY)
        async with self._database.reading(long=True) as connection:
            rows = (await connection.execute(summed_curves(names, compared))).mappings()
            curves = {tuple(row[name] for name in names): curve_of(row) for row in rows}
        return {key: curve for key, curve in curves.items() if curve}

    @unbroken
    async def blocks(
        self, group: StageGroup, *, control: bool, newest: int, since: float = 0
    ) -> list[ArmBlock]:
        """The newest blocks of a group's answers, or of the control traffic it compares with; newest first.

        Control traffic is plain, so it depends on neither the drafter nor K.

        Args:
            group: One of `groups`, of action speculate.
            control: Which arm.
            newest: Most blocks.
            since: Unix time from which on blocks count.
        """
        table = stage_records.c
        block = (table.block_at, table.block_seconds)
        sums = (
            func.count().label("answers"),
            _sum(table.timed_tokens).label("tokens"),
            func.sum(table.timed_seconds).label("seconds"),
            func.count(table.first_byte_seconds).label("streamed"),
            func.coalesce(func.sum(table.first_byte_seconds), 0).label("first_byte_seconds"),
            _sum(table.completion_tokens).label("answer_tokens"),
            func.sum(table.total_seconds).label("total_seconds"),
        )
        wanted = select(*block, *sums).where(*self._of_arm(group, control=control), table.block_at >= since)
        newest_first = wanted.group_by(*block).order_by(*(column.desc() for column in block)).limit(newest)
        async with self._database.reading(long=True) as connection:
            rows = (await connection.execute(newest_first)).mappings()
            return [
                ArmBlock(
                    block=Block(row["block_at"], row["block_seconds"]),
                    **{name.name: row[name.name] for name in sums},
                )
                for row in rows
            ]

    def _of_arm(self, group: StageGroup, *, control: bool) -> list[ColumnElement[bool]]:
        """The conditions of one arm's answers whose speeds may be compared."""
        table = stage_records.c
        alike = ("model", "workload", "executor", "temperature_band", "load_band", "control_backend")
        conditions = [table[name].is_not_distinct_from(getattr(group, name)) for name in alike]
        conditions += [table.timed_tokens > 0, table.timed_seconds > 0, COUNTED]
        if control:
            return [*conditions, table.action == "control", table.backend == group.control_backend]
        own = ("backend", "action", "drafter", "k")
        return conditions + [table[name].is_not_distinct_from(getattr(group, name)) for name in own]

    @unbroken
    async def newest(self) -> int:
        """A number that moves with every record; 0 without any."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(func.max(stage_records.c.id))) or 0

    @unbroken
    async def replayed(
        self, *, backend: str, model: str, drafter: str, newest: int
    ) -> tuple[ReplayedAnswer, ...]:
        """The newest replayed answers of one model on one backend for one drafter, newest first.

        Looping ones are left out.
        """
        table = stage_records.c
        wanted = (
            select(table.workload, table.k_curve)
            .where(table.backend == backend, table.model == model, table.drafter == drafter)
            .where(table.k_curve.is_not(None), COUNTED)
            .order_by(table.id.desc())
            .limit(newest)
        )
        async with self._database.reading(long=True) as connection:
            rows = await connection.execute(wanted)
            return tuple(ReplayedAnswer(workload=workload, k_curve=curve) for workload, curve in rows)

    async def delete_before(self, at: float, *, most: int) -> int:
        """Delete up to `most` of the records made before a Unix time; how many went."""
        table = stage_records.c
        return await self._delete(select(table.id).where(table.at < at).order_by(table.id).limit(most))

    async def delete_beyond(self, newest: int, *, most: int) -> int:
        """Delete up to `most` of the oldest records, never one of the `newest`; how many went."""
        table = stage_records.c
        last_to_go = select(table.id).order_by(table.id.desc()).offset(newest).limit(1).scalar_subquery()
        return await self._delete(
            select(table.id).where(table.id <= last_to_go).order_by(table.id).limit(most)
        )

    @unbroken
    async def _delete(self, ids: Select[tuple[int]]) -> int:
        async with self._database.writing(long=True) as connection:
            return await delete_picked(connection, stage_records, ids)


def _sum(column: Column[Any], *conditions: ColumnElement[bool]) -> ColumnElement[Any]:
    total = func.sum(column).filter(*conditions) if conditions else func.sum(column)
    # PostgreSQL sums whole numbers into its decimal type.
    return cast(total, BigInteger) if isinstance(column.type, Integer) else total
