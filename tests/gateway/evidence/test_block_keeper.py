"""What engines made of blocks is written once, and a store that is down costs blocks and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.evidence.block_keeper import BlockKeeper
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.records import engine_block
from tests.fakes.stores import opened_store, store_url


def keeper(store: Store, owner: str, dropped: Callable[[int], None] = lambda _: None) -> BlockKeeper:
    return BlockKeeper(store=store, owner=owner, on_drop=dropped, clock=FakeClock())


async def test_of_several_processes_that_see_a_block_one_writes_it(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        for owner in ("first", "second"):
            process = keeper(store, owner)
            process.put([engine_block()])
            await process.write_once()
        assert await store.engine_blocks.of("b", since=0) == (engine_block(),)


async def test_while_the_store_is_down_blocks_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    store, lost = Store(store_url(tmp_path)), list[int]()
    process = keeper(store, "only", lost.append)
    process.put([engine_block(), engine_block(at=1020.0)])
    await process.write_once()
    assert lost == [2]
    await store.close()


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    lost: list[int] = []
    process = keeper(Store(store_url(tmp_path)), "only", lost.append)
    for _ in range(1002):
        process.put([engine_block()])
    assert lost == [1, 1]
