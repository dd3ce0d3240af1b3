"""Every policy text that has been in force, append-only."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.database import Database, unbroken
from gateway.store.meta import count_change
from gateway.store.model import PolicyRevision, PolicyText
from gateway.store.tables import policy_revisions

_table = policy_revisions.c


class PolicyRows:
    """The policy_revisions table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def newest(self) -> PolicyRevision | None:
        """The last that came into force; None before the first."""
        async with self._database.reading() as connection:
            return await _newest(connection)

    @unbroken
    async def latest(self, limit: int) -> tuple[PolicyRevision, ...]:
        """The last `limit`, newest first."""
        listed = select(policy_revisions).order_by(_table.number.desc()).limit(limit)
        async with self._database.reading() as connection:
            rows = await connection.execute(listed)
            return tuple(PolicyRevision(**row) for row in rows.mappings())

    @unbroken
    async def named(self, name: str) -> PolicyRevision | None:
        """The one with this revision, the newest of several, or else with this number; None without one."""
        is_it = _table.revision == name
        if name.isascii() and name.isdigit() and len(name) < 12:
            is_it = is_it | (_table.number == int(name))
        found = select(policy_revisions).where(is_it).order_by(_table.number.desc()).limit(1)
        async with self._database.reading() as connection:
            row = (await connection.execute(found)).mappings().one_or_none()
            return PolicyRevision(**row) if row else None

    @unbroken
    async def append(self, text: PolicyText, *, after: str | None) -> PolicyRevision | None:
        """Keep a text as the newest if `after` is the newest revision now; None if it is another.

        Args:
            text: What comes into force.
            after: The revision that it takes the place of; None for the first.
        """
        async with self._database.writing() as connection:
            # First, since it keeps other writers out until this one has read and written.
            await count_change(connection)
            newest = await _newest(connection)
            if (newest.revision if newest else None) != after:
                return None
            kept = await connection.execute(
                insert(policy_revisions).values(asdict(text)).returning(policy_revisions)
            )
            return PolicyRevision(**kept.mappings().one())


async def _newest(connection: AsyncConnection) -> PolicyRevision | None:
    rows = await connection.execute(select(policy_revisions).order_by(_table.number.desc()).limit(1))
    row = rows.mappings().one_or_none()
    return PolicyRevision(**row) if row else None
