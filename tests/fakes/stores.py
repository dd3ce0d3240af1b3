"""Stores on real SQLite files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.store.store import Store


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'data' / 'ace.db'}"


@asynccontextmanager
async def opened_store(folder: Path) -> AsyncIterator[Store]:
    """A migrated store; two on one folder share their file."""
    store = Store(store_url(folder))
    await store.migrate()
    try:
        yield store
    finally:
        await store.close()
