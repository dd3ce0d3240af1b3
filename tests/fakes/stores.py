"""Stores on real databases: SQLite files unless a test asks for PostgreSQL."""

from __future__ import annotations

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
    try:
        await store.migrate()
        yield store
    finally:
        await store.close()
