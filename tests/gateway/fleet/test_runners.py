"""Draft runners: who has joined, and who is still there."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import MalformedRequest
from gateway.fleet.runners import LIVE_S, Runners
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.stores import opened_store, store_url
from tests.fakes.waiting import until

URL = "http://127.0.0.1:8090"


async def join(runners: Runners, url: str = URL, node: str = "n") -> None:
    await runners.join(url=url, node=node, drafters=["ngram"], version="1")


async def test_a_runner_that_joined_is_live_until_it_misses_its_joins(store: Store) -> None:
    clock = FakeClock()
    runners = Runners(store=store, clock=clock)
    await join(runners)
    assert [runner.url for runner in runners.live()] == [URL]
    clock.advance(LIVE_S)
    assert runners.live() == ()
    assert [runner.url for runner in runners.all()] == [URL]
    await join(runners)
    assert [runner.joined_at for runner in runners.live()] == [clock.now - LIVE_S]


async def test_the_url_is_held_to_the_same_rules_as_a_backends(store: Store) -> None:
    with pytest.raises(MalformedRequest):
        await join(Runners(store=store, clock=FakeClock()), url="http://169.254.169.254")


async def test_a_join_at_one_process_is_known_to_all_after_a_sync(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        joined, synced = Runners(store=one, clock=clock), Runners(store=other, clock=clock)
        await join(joined)
        await synced.sync_once()
        assert synced.live() == joined.live()
        clock.advance(5)
        await join(joined, url="http://127.0.0.1:8091")
        await synced.sync_once()
        assert [runner.url for runner in synced.live()] == ["http://127.0.0.1:8091", URL]


async def test_joining_works_while_the_store_is_down(tmp_path: Path) -> None:
    store = Store(store_url(tmp_path))
    runners = Runners(store=store, clock=FakeClock())
    await join(runners)
    await runners.sync_once()
    assert [runner.url for runner in runners.live()] == [URL]
    await store.close()


async def test_running_keeps_up_with_other_processes(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        synced = Runners(store=other, clock=clock)
        task = asyncio.create_task(synced.run(interval_s=0.001))
        await join(Runners(store=one, clock=clock))
        await until(lambda: len(synced.live()) == 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
