"""A store whose PostgreSQL is killed, hangs, or refuses a value."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.errors import StoreError
from gateway.store import database
from gateway.store.model import StageQuery
from gateway.store.store import Store
from gateway.store.writer import StageWriter
from tests.fakes.postgres import PostgresServer
from tests.fakes.records import stage
from tests.fakes.stores import store_at

pytestmark = [pytest.mark.ops]


@pytest.fixture
async def store(mortal_postgres: PostgresServer) -> AsyncIterator[Store]:
    async with store_at(await mortal_postgres.new_database()) as opened:
        yield opened


async def kept(store: Store) -> list[str]:
    return sorted(record["request_id"] for record in await store.stages.find(StageQuery(limit=1000)))


async def test_records_outlast_a_killed_server_and_what_does_not_fit_is_counted_and_said_once(
    store: Store, mortal_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    dropped = list[int]()
    writer = StageWriter(stages=store.stages, on_drop=dropped.append, queue_limit=5)
    writer.put(stage(request_id="before"))
    assert await writer.flush()
    mortal_postgres.kill()
    for number in range(8):
        writer.put(stage(request_id=f"meanwhile-{number}"))
        assert not await writer.flush()
    mortal_postgres.start()
    assert await writer.flush()
    assert await kept(store) == ["before", *(f"meanwhile-{number}" for number in range(5))]
    assert sum(dropped) == 3
    lost, again = (record.getMessage() for record in caplog.records)
    assert "wait in memory" in lost
    assert "again" in again


async def test_a_server_that_hangs_holds_up_one_round_and_is_used_again_once_it_answers(
    store: Store, mortal_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LIMIT_S", 0.3)
    mortal_postgres.hang()
    try:
        first = await asyncio.gather(*(store.meta.changes() for _ in range(8)), return_exceptions=True)
        assert {str(error).count("did not answer in time") for error in first} == {1}
        with pytest.raises(StoreError, match="keeps asking"):
            await store.meta.changes()
    finally:
        mortal_postgres.go_on()
    async with asyncio.timeout(30):
        while True:
            try:
                assert await store.meta.changes() == 0
                break
            except StoreError:
                await asyncio.sleep(0.01)


async def test_a_server_that_hung_and_was_killed_is_used_again_when_it_is_back(
    store: Store, mortal_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LIMIT_S", 0.3)
    mortal_postgres.hang()
    with pytest.raises(StoreError, match="in time"):
        await store.meta.changes()
    mortal_postgres.kill()
    mortal_postgres.start()
    async with asyncio.timeout(30):
        while True:
            try:
                assert await store.meta.changes() == 0
                break
            except StoreError:
                await asyncio.sleep(0.01)


async def test_a_value_that_postgresql_cannot_keep_holds_up_no_other_record(store: Store) -> None:
    """Its text knows no NUL, and a store that is asked again would refuse it again."""
    dropped = list[int]()
    writer = StageWriter(stages=store.stages, on_drop=dropped.append)
    writer.put(stage(request_id="n\0l"))
    assert await writer.flush()
    writer.put(stage(request_id="other"))
    assert await writer.flush()
    assert await kept(store) == ["other"]
    assert sum(dropped) == 1


async def test_a_connection_that_breaks_while_it_is_set_up_is_an_outage_like_any_other(
    mortal_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(*_: object, **__: object) -> None:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(asyncpg.Connection, "set_type_codec", break_off)
    store = Store(await mortal_postgres.new_database())
    with pytest.raises(StoreError, match="in the middle of operation"):
        await store.meta.changes()
    await store.close()


async def test_closing_while_the_server_hangs_comes_to_an_end(
    mortal_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LIMIT_S", 0.3)
    store = Store(await mortal_postgres.new_database())
    await store.migrate()
    mortal_postgres.hang()
    try:
        with pytest.raises(StoreError):
            await store.meta.changes()
        async with asyncio.timeout(30):
            await store.close()
    finally:
        mortal_postgres.go_on()
