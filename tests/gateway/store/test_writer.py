"""The writer: batched, bounded, and no trouble to anyone while the store is down."""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import StoreError
from gateway.store.model import StageQuery
from gateway.store.stages import Row
from gateway.store.store import Store
from gateway.store.writer import StageWriter
from tests.fakes.records import stage
from tests.fakes.stores import opened_store, store_url


class ScriptedStages:
    """Keeps batches, or fails while told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.failure: Exception | None = None
        self.fails_after_keeping = False
        self.tried = 0
        self.kept = asyncio.Event()

    async def add(self, rows: Sequence[Row]) -> None:
        self.tried += 1
        if self.failure is not None:
            raise self.failure
        self.batches.append([row["request_id"] for row in rows])
        self.kept.set()
        if self.fails_after_keeping:
            raise DOWN

    async def keeps(self, row: Row) -> bool:
        return any(row["request_id"] in batch for batch in self.batches)


def none_may_be_lost(records: int) -> None:
    pytest.fail(f"{records} records were dropped")


DOWN = StoreError("sqlite:///x", "disk full")


def put(writer: StageWriter, *ids: str) -> None:
    for request_id in ids:
        writer.put(stage(request_id=request_id))


async def test_records_are_written_in_order_and_in_batches() -> None:
    stages = ScriptedStages()
    writer = StageWriter(stages=stages, on_drop=none_may_be_lost, batch_rows=2)
    put(writer, "a", "b", "c")
    assert await writer.flush()
    assert stages.batches == [["a", "b"], ["c"]]


async def test_a_full_batch_does_not_wait_for_the_interval() -> None:
    stages = ScriptedStages()
    writer = StageWriter(stages=stages, on_drop=none_may_be_lost, batch_rows=2, interval_s=3600.0)
    running = asyncio.create_task(writer.run())
    put(writer, "a", "b")
    await stages.kept.wait()
    assert stages.batches == [["a", "b"]]
    await writer.close()
    await running


async def test_a_single_record_waits_no_longer_than_the_interval() -> None:
    stages = ScriptedStages()
    writer = StageWriter(stages=stages, on_drop=none_may_be_lost, interval_s=0.01)
    running = asyncio.create_task(writer.run())
    put(writer, "a")
    await stages.kept.wait()
    await writer.close()
    await running
    assert stages.batches == [["a"]]


async def test_closing_writes_what_waits_and_ends_the_task() -> None:
    stages = ScriptedStages()
    writer = StageWriter(stages=stages, on_drop=none_may_be_lost, interval_s=3600.0)
    running = asyncio.create_task(writer.run())
    put(writer, "a")
    await writer.close()
    await running
    assert stages.batches == [["a"]]


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
    dropped: list[int] = []
    writer = StageWriter(stages=ScriptedStages(), on_drop=dropped.append, queue_limit=2)
    put(writer, "a", "b", "c", "d")
    assert sum(dropped) == 2


async def test_records_wait_while_the_store_is_down_and_are_written_once_it_is_back() -> None:
    stages, dropped = ScriptedStages(), list[int]()
    writer = StageWriter(stages=stages, on_drop=dropped.append, batch_rows=2, queue_limit=4)
    stages.failure = DOWN
    put(writer, "a", "b", "c")
    assert not await writer.flush()
    assert not await writer.flush()
    put(writer, "d", "e")
    stages.failure = None
    assert await writer.flush()
    assert [request for batch in stages.batches for request in batch] == ["a", "b", "c", "d"]
    assert sum(dropped) == 1


async def test_what_was_kept_by_a_store_that_failed_before_it_said_so_is_not_written_twice() -> None:
    stages = ScriptedStages()
    writer = StageWriter(stages=stages, on_drop=none_may_be_lost, batch_rows=2)
    stages.fails_after_keeping = True
    put(writer, "a", "b", "c")
    assert not await writer.flush()
    stages.fails_after_keeping = False
    assert await writer.flush()
    assert stages.batches == [["a", "b"], ["c"]]


async def test_an_outage_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stages = ScriptedStages()
    writer = StageWriter(stages=stages, on_drop=none_may_be_lost)
    stages.failure = DOWN
    put(writer, "a")
    for _ in range(3):
        await writer.flush()
    stages.failure = None
    for _ in range(3):
        put(writer, "b")
        await writer.flush()
    first, second = (record.getMessage() for record in caplog.records)
    assert "disk full" in first
    assert "again" in second


async def test_an_outage_does_not_make_full_batches_hammer_the_store() -> None:
    stages = ScriptedStages()
    writer = StageWriter(stages=stages, on_drop=none_may_be_lost, batch_rows=1, interval_s=3600.0)
    stages.failure = DOWN
    put(writer, "a")
    assert not await writer.flush()
    running = asyncio.create_task(writer.run())
    for request_id in "bcdefgh":
        put(writer, request_id)
        await asyncio.sleep(0)
    assert stages.tried == 1
    stages.failure = None
    await writer.close()
    await running
    assert sum(len(batch) for batch in stages.batches) == 8


async def test_closing_during_an_outage_counts_what_is_lost() -> None:
    stages, dropped = ScriptedStages(), list[int]()
    writer = StageWriter(stages=stages, on_drop=dropped.append)
    stages.failure = DOWN
    put(writer, "a", "b", "c")
    await writer.close()
    assert sum(dropped) == 3


async def test_a_record_that_cannot_be_stored_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    stages, dropped = ScriptedStages(), list[int]()
    writer = StageWriter(stages=stages, on_drop=dropped.append)
    put(writer, "a", "\ud800", "b")
    assert await writer.flush()
    assert stages.batches == [["a", "b"]]
    assert sum(dropped) == 1
    assert "cannot be stored" in caplog.text


async def test_a_batch_that_can_never_be_stored_is_given_up(store: Store) -> None:
    dropped: list[int] = []
    writer = StageWriter(stages=store.stages, on_drop=dropped.append)
    writer.put(stage(draft_tokens=2**63))
    assert await writer.flush()
    put(writer, "b")
    assert await writer.flush()
    assert sum(dropped) == 1
    assert [record["request_id"] for record in await store.stages.find(StageQuery())] == ["b"]


async def test_a_locked_database_delays_records_and_loses_none(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        writer = StageWriter(stages=Unpatient(store), on_drop=none_may_be_lost)
        blocker = sqlite3.connect(tmp_path / "data" / "ace.db", isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        put(writer, "a")
        assert not await writer.flush()
        blocker.execute("ROLLBACK")
        blocker.close()
        assert await writer.flush()
        assert len(await store.stages.find(StageQuery())) == 1


class Unpatient:
    """The store's stages, without the five seconds that a connection waits for a lock."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, rows: Sequence[Row]) -> None:
        async with self._store._database.reading() as connection:
            await connection.exec_driver_sql("PRAGMA busy_timeout=1")
        await self._store.stages.add(rows)

    async def keeps(self, row: Row) -> bool:
        return await self._store.stages.keeps(row)


async def test_a_task_that_is_cancelled_while_it_writes_writes_nothing_twice(store: Store) -> None:
    writer = StageWriter(stages=store.stages, on_drop=none_may_be_lost, interval_s=0.001)
    written = 0
    for _ in range(20):
        running = asyncio.create_task(writer.run())
        put(writer, "a", "b", "c")
        written += 3
        for _ in range(written % 7):
            await asyncio.sleep(0.001)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    await writer.close()
    assert len(await store.stages.find(StageQuery())) == written


async def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    async with opened_store(tmp_path):
        pass
    shutil.rmtree(tmp_path / "data")
    store, dropped = Store(store_url(tmp_path)), list[int]()
    writer = StageWriter(stages=store.stages, on_drop=dropped.append)
    put(writer, "a")
    assert not await writer.flush()
    await writer.close()
    assert sum(dropped) == 1
    await store.close()


async def test_a_read_only_database_is_no_trouble(tmp_path: Path) -> None:
    async with opened_store(tmp_path):
        pass
    # Read-only for every user, root too, which file modes are not.
    store, dropped = Store(f"{store_url(tmp_path)}?mode=ro&uri=true".replace("///", "///file:")), list[int]()
    writer = StageWriter(stages=store.stages, on_drop=dropped.append)
    put(writer, "a")
    assert not await writer.flush()
    await writer.close()
    assert sum(dropped) == 1
    await store.close()
