"""Draft runners that have joined."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import RowMapping, delete, select

from gateway.store.database import Database, insert_or, unbroken
from gateway.store.model import AnnouncedDraftModel, Runner
from gateway.store.tables import runners

_FORGOTTEN_S = 86_400.0


class RunnerRows:
    """The runners table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def all(self) -> tuple[Runner, ...]:
        """Every runner, most recently seen first."""
        async with self._database.reading() as connection:
            rows = await connection.execute(select(runners).order_by(runners.c.seen_at.desc()))
            return tuple(_runner(row) for row in rows.mappings())

    @unbroken
    async def join(self, runner: Runner) -> None:
        """Keep a new runner, or that a known one was seen again; forget those that are long gone."""
        seen = {
            "node": runner.node,
            "drafters": list(runner.drafters),
            "version": runner.version,
            "seen_at": runner.seen_at,
            "draft_model": asdict(runner.draft_model) if runner.draft_model else None,
        }
        async with self._database.writing() as connection:
            long_gone = runners.c.seen_at < runner.seen_at - _FORGOTTEN_S
            await connection.execute(delete(runners).where(long_gone))
            joined = insert_or(connection, runners).values(url=runner.url, joined_at=runner.joined_at, **seen)
            await connection.execute(joined.on_conflict_do_update(index_elements=[runners.c.url], set_=seen))


def _runner(row: RowMapping) -> Runner:
    announced = row["draft_model"]
    return Runner(
        **{
            **row,
            "drafters": tuple(row["drafters"]),
            "draft_model": AnnouncedDraftModel(**announced) if announced else None,
        }
    )
