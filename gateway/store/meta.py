"""Small facts about the store itself: the change counter, the admin token's hash, leases."""

from __future__ import annotations

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.database import Database, insert_or, unbroken
from gateway.store.tables import leases, meta

_CHANGES = "changes"
_ADMIN = "admin_token_sha256"


class MetaRows:
    """The meta and leases tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def changes(self) -> int:
        """A number that moves with every change of what processes share, whoever made it."""
        async with self._database.reading() as connection:
            found = await connection.scalar(select(meta.c.number).where(meta.c.name == _CHANGES))
        return found or 0

    @unbroken
    async def admin_token_sha256(self) -> str | None:
        """The hash of the admin token in force; None before the first start has made one."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(meta.c.text).where(meta.c.name == _ADMIN))

    @unbroken
    async def set_admin_token_sha256(self, sha256: str) -> None:
        """Put a hash in force in place of any other."""
        async with self._database.writing() as connection:
            token = insert_or(connection, meta).values(name=_ADMIN, text=sha256)
            await connection.execute(
                token.on_conflict_do_update(index_elements=[meta.c.name], set_={"text": sha256})
            )
            await count_change(connection)

    @unbroken
    async def offer_admin_token_sha256(self, sha256: str) -> bool:
        """Put a hash in force unless there is one already; whether it was taken."""
        async with self._database.writing() as connection:
            token = insert_or(connection, meta).values(name=_ADMIN, text=sha256)
            offered = await connection.execute(token.on_conflict_do_nothing(index_elements=[meta.c.name]))
            if offered.rowcount:
                await count_change(connection)
            return bool(offered.rowcount)

    @unbroken
    async def claim(self, name: str, owner: str, *, now: float, seconds: float) -> bool:
        """Take or keep a lease, so that one process of several does a job; whether `owner` holds it."""
        kept = {"owner": owner, "expires_at": now + seconds}
        async with self._database.writing() as connection:
            lease = insert_or(connection, leases).values(name=name, **kept)
            free = or_(leases.c.owner == owner, leases.c.expires_at < now)
            taken = await connection.execute(
                lease.on_conflict_do_update(index_elements=[leases.c.name], set_=kept, where=free)
            )
            return bool(taken.rowcount)


async def count_change(connection: AsyncConnection) -> None:
    """Move the change counter, in the transaction that makes the change.

    It is the last thing that a transaction does: others that change something wait for its end.
    """
    first = insert_or(connection, meta).values(name=_CHANGES, number=1)
    await connection.execute(
        first.on_conflict_do_update(index_elements=[meta.c.name], set_={"number": meta.c.number + 1})
    )
