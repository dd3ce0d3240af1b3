"""A full disk: nothing is lost but what does not fit into memory, and that is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from gateway.errors import StoreError
from gateway.store.model import StageQuery
from gateway.store.retention import Retention
from gateway.store.stages import row_of
from gateway.store.writer import StageWriter
from tests.fakes.clock import FakeClock
from tests.fakes.records import stage
from tests.fakes.stores import opened_store

DAY = 86_400.0
_NO_MORE, _AS_MANY_AS_WANTED = 1, 2**30


class Disk:
    """What SQLite may still take of it."""

    pages = _AS_MANY_AS_WANTED

    def fill(self) -> None:
        """From now on a database may use the pages that it has, and no further one."""
        self.pages = _NO_MORE

    def make_space(self) -> None:
        self.pages = _AS_MANY_AS_WANTED


@pytest.fixture
def disk() -> Iterator[Disk]:
    small = Disk()

    def limit(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={small.pages}")

    event.listen(Engine, "begin", limit)
    yield small
    event.remove(Engine, "begin", limit)


def put(writer: StageWriter, count: int, name: str) -> None:
    for number in range(count):
        # Each fills a page of its own.
        writer.put(stage(request_id=f"{name}-{number}", k_curve={"1": {"note": "x" * 5000}}))


async def test_records_wait_for_space_and_what_does_not_fit_is_counted_and_said_once(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    dropped = list[int]()
    async with opened_store(tmp_path) as store:
        writer = StageWriter(stages=store.stages, on_drop=dropped.append, queue_limit=10)
        put(writer, 3, "before")
        assert await writer.flush()
        disk.fill()
        put(writer, 8, "waiting")
        for _ in range(3):
            assert not await writer.flush()
        put(writer, 8, "late")
        assert sum(dropped) == 6
        assert await store.backends.all() == ()
        disk.make_space()
        assert await writer.flush()
        kept = [record["request_id"] for record in await store.stages.find(StageQuery(limit=100))]
    assert sorted(kept) == sorted(
        [
            *(f"before-{n}" for n in range(3)),
            *(f"waiting-{n}" for n in range(8)),
            *(f"late-{n}" for n in range(2)),
        ]
    )
    full, again = (record.getMessage() for record in caplog.records)
    assert "disk is full" in full
    assert "again" in again


async def test_deleting_old_records_makes_room_for_new_ones(disk: Disk, tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened_store(tmp_path) as store:
        old = stage(at=clock.now - 8 * DAY, k_curve={"1": {"note": "x" * 5000}})
        await store.stages.add([row_of(old)] * 20)
        disk.fill()
        new = [row_of(stage(request_id="new", at=clock.now, k_curve={"1": {"note": "x" * 5000}}))] * 10
        with pytest.raises(StoreError, match="disk is full"):
            await store.stages.add(new)
        retention = Retention(stages=store.stages, blocks=store.engine_blocks, days=7, rows=100, clock=clock)
        assert await retention.sweep_once() == 20
        await store.stages.add(new)
        assert len(await store.stages.find(StageQuery(limit=100))) == 10
