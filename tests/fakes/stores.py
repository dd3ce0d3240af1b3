"""Stores on real databases: SQLite files unless a test asks for PostgreSQL."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from gateway.store.store import Store


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'data' / 'ace.db'}"


def opened_store(folder: Path) -> AbstractAsyncContextManager[Store]:
    """A migrated store; two on one folder share their file."""
    return store_at(store_url(folder))


@asynccontextmanager
async def store_at(url: str) -> AsyncIterator[Store]:
    """A migrated store; two at one URL share their database."""
    store = Store(url)
    if store.is_file:
        await asyncio.to_thread(_begin_with_tables, Path(url.removeprefix("sqlite:///")))
    try:
        await store.migrate()
        yield store
    finally:
        await store.close()


_TABLES = Path(tempfile.mkdtemp(prefix="ace-tables-")) / "ace.db"
"""A database that has been migrated once for all tests of this process: that takes a tenth of a second."""

_MAKING = threading.Lock()

atexit.register(shutil.rmtree, _TABLES.parent, ignore_errors=True)


def _begin_with_tables(file: Path) -> None:
    """Copy the tables to where there is no database yet."""
    if file.exists():
        return
    with _MAKING:
        if not _TABLES.exists():
            asyncio.run(_make_tables())
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copy(_TABLES, file)


async def _make_tables() -> None:
    store = Store(f"sqlite:///{_TABLES}")
    await store.migrate()
    await store.close()
