"""Old records go, surplus records go, others stay."""

import asyncio
import logging

import pytest

from gateway.errors import StoreError
from gateway.store.model import StageQuery
from gateway.store.retention import Retention
from gateway.store.stages import row_of
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.records import engine_block, stage

DAY = 86_400.0


async def keep(store: Store, *ages_in_days: float, clock: FakeClock) -> None:
    await store.stages.add(
        [row_of(stage(request_id=str(age), at=clock.now - age * DAY)) for age in ages_in_days]
    )


async def kept(store: Store) -> list[str]:
    return [record["request_id"] for record in await store.stages.find(StageQuery(limit=1000))]


async def test_records_older_than_the_limit_go(store: Store) -> None:
    clock = FakeClock()
    await keep(store, 9.0, 7.1, 6.9, 0.0, clock=clock)
    retention = Retention(stages=store.stages, blocks=store.engine_blocks, days=7, rows=100, clock=clock)
    assert await retention.sweep_once() == 2
    assert await kept(store) == ["0.0", "6.9"]


async def test_the_oldest_beyond_the_row_cap_go(store: Store) -> None:
    clock = FakeClock()
    await keep(store, 5, 4, 3, 2, 1, clock=clock)
    retention = Retention(stages=store.stages, blocks=store.engine_blocks, days=7, rows=3, clock=clock)
    assert await retention.sweep_once() == 2
    assert await kept(store) == ["1", "2", "3"]


async def test_what_engines_made_of_blocks_goes_with_the_records_of_its_time(store: Store) -> None:
    clock = FakeClock()
    ages = (9.0, 7.1, 6.9)
    await store.engine_blocks.add([engine_block(at=clock.now - age * DAY) for age in ages])
    retention = Retention(
        stages=store.stages, blocks=store.engine_blocks, days=7, rows=100, clock=clock, batch_rows=1
    )
    await retention.sweep_once()
    (left,) = await store.engine_blocks.of("b", since=0)
    assert left == engine_block(at=clock.now - 6.9 * DAY)


@pytest.mark.parametrize("rows", [3, 4])
async def test_a_store_within_its_limits_loses_nothing(store: Store, rows: int) -> None:
    clock = FakeClock()
    await keep(store, 3, 2, 1, clock=clock)
    assert (
        await Retention(
            stages=store.stages, blocks=store.engine_blocks, days=7, rows=rows, clock=clock
        ).sweep_once()
        == 0
    )
    assert len(await kept(store)) == 3


async def test_many_records_go_in_several_transactions(store: Store) -> None:
    clock = FakeClock()
    await keep(store, *([8.0] * 7), *([1.0] * 7), clock=clock)
    retention = Retention(
        stages=store.stages, blocks=store.engine_blocks, days=7, rows=2, clock=clock, batch_rows=2
    )
    before = await store.meta.changes()
    assert await retention.sweep_once() == 12
    assert await kept(store) == ["1.0", "1.0"]
    assert await store.meta.changes() == before


class BrokenStages:
    """Fails a few times, then has nothing to delete."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.swept = asyncio.Event()

    async def delete_before(self, at: float, *, most: int) -> int:
        if self.failures:
            self.failures -= 1
            raise StoreError("sqlite:///x", "database is locked")
        self.swept.set()
        return 0

    async def delete_beyond(self, newest: int, *, most: int) -> int:
        return 0


async def test_an_outage_is_logged_once_and_outlived(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stages = BrokenStages(failures=3)
    running = asyncio.create_task(
        Retention(stages=stages, blocks=stages, days=7, rows=10, clock=FakeClock()).run(interval_s=0.001)
    )
    await stages.swept.wait()
    running.cancel()
    assert len(caplog.records) == 1
