"""What an operator wants to know of the store: can it be read and written, is it migrated, is there room."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import column, select, table

from gateway.errors import StoreError
from gateway.store import migrate
from gateway.store.database import Database

_VERSION = table("alembic_version", column("version_num"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLook:
    """What one look at the database found.

    Attributes:
        label: Its URL without a password.
        error: Why it cannot be read or written; None when it can.
        revision: Of its tables; None where it could not be read.
        newest: The revision that this version of the gateway needs.
        bytes_used: Size of a SQLite file with its log; None for a server.
        bytes_free: Room on that file's disk; None for a server.
    """

    label: str
    error: str | None
    revision: str | None
    newest: str
    bytes_used: int | None
    bytes_free: int | None


async def look_at(database: Database) -> StoreLook:
    """One look; never raises, and changes nothing."""
    file = database.file
    revision, error = None, None
    if file is not None and not file.exists():
        error = f"{file} does not exist"
    else:
        try:
            revision = await _revision(database)
        except StoreError as failure:
            error = str(failure)
    used, free = await asyncio.to_thread(_room, file) if file is not None else (None, None)
    return StoreLook(
        label=database.label,
        error=error,
        revision=revision,
        newest=migrate.newest(),
        bytes_used=used,
        bytes_free=free,
    )


async def _revision(database: Database) -> str | None:
    async with database.writing() as connection:
        # A transaction that could write: a file that is only readable is found out as well.
        found: str | None = await connection.scalar(select(_VERSION.c.version_num))
        return found


def _room(file: Path) -> tuple[int | None, int | None]:
    parts = [file, file.with_name(f"{file.name}-wal")]
    used = sum(part.stat().st_size for part in parts if part.exists())
    folder = next((above for above in file.parents if above.exists()), None)
    return used, shutil.disk_usage(folder).free if folder else None
