from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.store import Store
from tests.fakes.stores import opened_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(tmp_path) as opened:
        yield opened
