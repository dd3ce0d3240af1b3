from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.store import Store
from tests.fakes.postgres import PostgresServer
from tests.fakes.stores import store_at, store_url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.ops)])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database, of each kind that a store can be kept in."""
    if request.param == "sqlite":
        return store_url(tmp_path)
    server: PostgresServer = request.getfixturevalue("postgres")
    return await server.new_database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with store_at(url) as opened:
        yield opened
