"""What several processes do at the same moment: each is a store of its own on one database."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from gateway.errors import Conflict
from gateway.evidence.loop_costs import CostKey
from gateway.fleet.model import Backend, BackendState
from gateway.store.model import Runner, StageQuery, StoredKey
from gateway.store.retention import Retention
from gateway.store.stages import row_of
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import registered
from tests.fakes.records import stage
from tests.fakes.standings import costs
from tests.fakes.stores import store_at

KEY = CostKey(backend="gpu-1", model="org/m", strategy="fanout", drafter="ngram", band="2-4")
DAY = 86_400.0


@pytest.fixture
async def stores(url: str) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(store_at(url)) for _ in range(4)]


async def test_a_lease_that_nobody_holds_is_taken_by_one(stores: list[Store]) -> None:
    for turn in range(10):
        claims = (
            store.meta.claim(f"job-{turn}", f"owner-{number}", now=0.0, seconds=15.0)
            for number, store in enumerate(stores)
        )
        assert sorted(await asyncio.gather(*claims)) == [False, False, False, True]


async def test_a_lease_that_has_run_out_is_taken_by_one(stores: list[Store]) -> None:
    assert await stores[0].meta.claim("job", "gone", now=0.0, seconds=15.0)
    claims = (
        store.meta.claim("job", f"owner-{number}", now=20.0, seconds=15.0)
        for number, store in enumerate(stores)
    )
    assert sum(await asyncio.gather(*claims)) == 1


async def test_every_change_is_counted(stores: list[Store]) -> None:
    keys = [
        StoredKey(id=f"k{n}", name="k", tenant="t", prefix="ace-", sha256=f"{n:064}", created_at=1.0)
        for n in range(40)
    ]
    await asyncio.gather(*(stores[n % 4].keys.add(key) for n, key in enumerate(keys)))
    assert await stores[0].meta.changes() == len(keys)
    assert len(await stores[1].keys.all()) == len(keys)


async def test_an_admin_token_offered_by_several_is_one_of_theirs(stores: list[Store]) -> None:
    tokens = [f"{number:064}" for number in range(len(stores))]
    taken = await asyncio.gather(
        *(store.meta.offer_admin_token_sha256(token) for store, token in zip(stores, tokens, strict=True))
    )
    assert sum(taken) == 1
    assert await stores[0].meta.admin_token_sha256() == tokens[taken.index(True)]


async def test_an_admin_token_set_by_several_at_once_is_set(stores: list[Store]) -> None:
    tokens = [f"{number:064}" for number in range(len(stores))]
    await asyncio.gather(
        *(store.meta.set_admin_token_sha256(token) for store, token in zip(stores, tokens, strict=True))
    )
    assert await stores[0].meta.admin_token_sha256() in tokens


async def test_a_backend_name_is_taken_once_and_told_to_the_others(stores: list[Store]) -> None:
    backends = [Backend(name="gpu-1", url=f"http://gpu-1:{number}") for number in range(len(stores))]
    added = await asyncio.gather(
        *(store.backends.add(registered(backend)) for store, backend in zip(stores, backends, strict=True)),
        return_exceptions=True,
    )
    assert Counter(type(outcome) for outcome in added) == {type(None): 1, Conflict: 3}
    assert await stores[0].backends.all() == (registered(backends[added.index(None)]),)


async def test_a_backend_may_be_saved_and_removed_at_once(stores: list[Store]) -> None:
    backend = Backend(name="gpu-1", url="http://gpu-1:8000")
    await stores[0].backends.add(registered(backend))
    down = replace(backend, state=BackendState.DOWN, state_reason="it does not answer")
    outcomes = await asyncio.gather(
        *(store.backends.save(down) for store in stores),
        stores[0].backends.remove("gpu-1"),
        *(store.backends.save(down) for store in stores),
    )
    assert outcomes[len(stores)] is True
    assert await stores[0].backends.all() == ()


async def test_a_runner_that_joins_at_several_gateways_at_once_joins(stores: list[Store]) -> None:
    runner = Runner(url="http://r:1", node="n", drafters=("ngram",), version="1", joined_at=1.0, seen_at=1.0)
    await asyncio.gather(*(store.runners.join(runner) for store in stores for _ in range(5)))
    assert await stores[0].runners.all() == (runner,)


async def test_a_calibration_measured_by_several_at_once_is_kept_once(stores: list[Store]) -> None:
    measured = [costs(KEY, 100.0 + number) for number in range(len(stores))]
    await asyncio.gather(*(store.calibrations.keep(one) for store, one in zip(stores, measured, strict=True)))
    (kept,) = await stores[0].calibrations.all()
    assert kept in measured


async def test_sweeps_at_once_delete_what_must_go_and_no_more(stores: list[Store]) -> None:
    """Also while records are written: the newest stay, whoever deletes."""
    clock = FakeClock()
    old = [row_of(stage(request_id="old", at=clock.now - 8 * DAY)) for _ in range(150)]
    new = [row_of(stage(request_id=f"new-{n}", at=clock.now + n)) for n in range(150)]
    await stores[0].stages.add(old + new)
    sweeps = [
        Retention(
            stages=store.stages, blocks=store.engine_blocks, days=7, rows=100, clock=clock, batch_rows=20
        )
        for store in stores
    ]
    gone, *_ = await asyncio.gather(
        asyncio.gather(*(sweep.sweep_once() for sweep in sweeps)),
        stores[0].stages.add([row_of(stage(request_id="newest", at=clock.now + 1000.0))] * 10),
    )
    gone_later = [await sweep.sweep_once() for sweep in sweeps]
    kept = [record["request_id"] for record in await stores[0].stages.find(StageQuery(limit=1000))]
    assert kept == ["newest"] * 10 + [f"new-{n}" for n in range(149, 59, -1)]
    assert sum(gone) + sum(gone_later) == 150 + 60
