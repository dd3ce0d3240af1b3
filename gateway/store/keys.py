"""API keys at rest: hashes only."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import insert, select, update

from gateway.store.database import Database, unbroken
from gateway.store.meta import count_change
from gateway.store.model import StoredKey
from gateway.store.tables import api_keys


class KeyRows:
    """The api_keys table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def all(self) -> tuple[StoredKey, ...]:
        """Every key, revoked ones too, oldest first."""
        async with self._database.reading() as connection:
            rows = await connection.execute(select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))
            return tuple(StoredKey(**row) for row in rows.mappings())

    @unbroken
    async def add(self, key: StoredKey) -> None:
        """Keep a new key's hash."""
        async with self._database.writing() as connection:
            await connection.execute(insert(api_keys).values(asdict(key)))
            await count_change(connection)

    @unbroken
    async def revoke(self, key_id: str, at: float) -> bool:
        """Make a key good no longer; whether there is such a key. The first revocation's time stays."""
        async with self._database.writing() as connection:
            one = api_keys.c.id == key_id
            known = await connection.scalar(select(api_keys.c.id).where(one))
            await connection.execute(
                update(api_keys).where(one, api_keys.c.revoked_at.is_(None)).values(revoked_at=at)
            )
            await count_change(connection)
            return known is not None
