"""Backends, keys, runners and small facts: kept, changed, shared by processes."""

import asyncio
import sqlite3
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import Conflict, StoreError
from gateway.fleet.model import Backend, BackendState, EngineKind
from gateway.store.model import AnnouncedDraftModel, Runner, StoredKey
from gateway.store.store import Store
from probes.model import Capability, Finding, Support
from tests.fakes.fleet import registered
from tests.fakes.stores import opened_store, store_at, store_url

BACKEND = Backend(
    name="gpu-1",
    url="http://gpu-1:8000",
    declared_kind="auto",
    kind=EngineKind.EMBEDDED,
    state=BackendState.UP,
    state_reason="",
    credential="env:GPU_KEY",
    tokenizer="/models/m",
    models=("m", "n"),
    findings={
        Capability.CONTEXT_LENGTH: Finding(
            capability=Capability.CONTEXT_LENGTH, support=Support.YES, evidence="it says so", value=8192
        ),
        Capability.MODELS: Finding(
            capability=Capability.MODELS, support=Support.YES, evidence="two", value=["m", "n"]
        ),
    },
    probed_at=12.5,
)
REGISTERED = registered(BACKEND)
KEY = StoredKey(id="k1", name="laptop", tenant="search", prefix="ace-abcdef", sha256="0" * 64, created_at=1.0)


async def test_a_backend_comes_back_as_it_was(store: Store) -> None:
    await store.backends.add(REGISTERED)
    assert await store.backends.all() == (REGISTERED,)


async def test_a_name_is_taken_once(store: Store) -> None:
    await store.backends.add(REGISTERED)
    with pytest.raises(Conflict, match="'gpu-1' is registered already"):
        await store.backends.add(registered(replace(BACKEND, url="http://other:1")))
    assert await store.backends.all() == (REGISTERED,)


async def test_what_was_learnt_of_a_replaced_backend_is_not_kept(store: Store) -> None:
    await store.backends.add(REGISTERED)
    assert not await store.backends.save(replace(BACKEND, url="http://before:1", state=BackendState.DOWN))
    assert not await store.backends.save(replace(BACKEND, name="gone"))
    assert await store.backends.all() == (REGISTERED,)


async def test_every_change_of_backends_and_keys_moves_the_counter(store: Store) -> None:
    seen = [await store.meta.changes()]
    for change in (
        store.backends.add(REGISTERED),
        store.backends.save(replace(BACKEND, state=BackendState.DOWN)),
        store.backends.remove(BACKEND.name),
        store.keys.add(KEY),
        store.keys.revoke(KEY.id, 2.0),
        store.meta.set_admin_token_sha256("a" * 64),
    ):
        await change
        seen.append(await store.meta.changes())
    assert seen == sorted(set(seen))


async def test_what_changes_nothing_does_not_move_the_counter(store: Store) -> None:
    before = await store.meta.changes()
    assert not await store.backends.remove("nobody")
    await store.meta.claim("health", "a", now=0.0, seconds=10.0)
    assert await store.meta.changes() == before


async def test_a_second_revocation_keeps_the_time_of_the_first(store: Store) -> None:
    await store.keys.add(KEY)
    assert await store.keys.revoke(KEY.id, 2.0)
    assert await store.keys.revoke(KEY.id, 9.0)
    assert await store.keys.all() == (replace(KEY, revoked_at=2.0),)
    assert not await store.keys.revoke("nobody", 2.0)


async def test_a_lease_has_one_holder_until_it_runs_out(store: Store) -> None:
    assert await store.meta.claim("health", "a", now=0.0, seconds=15.0)
    assert not await store.meta.claim("health", "b", now=14.0, seconds=15.0)
    assert await store.meta.claim("health", "a", now=14.0, seconds=15.0)
    assert not await store.meta.claim("health", "b", now=28.0, seconds=15.0)
    assert await store.meta.claim("health", "b", now=29.5, seconds=15.0)
    assert not await store.meta.claim("health", "a", now=30.0, seconds=15.0)


async def test_an_admin_token_is_offered_once(store: Store) -> None:
    assert await store.meta.offer_admin_token_sha256("a" * 64)
    assert not await store.meta.offer_admin_token_sha256("b" * 64)
    assert await store.meta.admin_token_sha256() == "a" * 64


async def test_a_runner_that_joins_again_is_the_same_runner(store: Store) -> None:
    runner = Runner(
        url="http://r:8090", node="n1", drafters=("ngram",), version="1", joined_at=1.0, seen_at=1.0
    )
    await store.runners.join(runner)
    draft_model = AnnouncedDraftModel(name="small", fingerprint="f00d", vocabulary_size=49_152)
    again = replace(runner, node="n2", draft_model=draft_model, seen_at=6.0)
    await store.runners.join(replace(again, joined_at=6.0))
    assert await store.runners.all() == (again,)


async def test_runners_not_seen_for_a_day_are_forgotten(store: Store) -> None:
    old = Runner(url="http://old:1", node="n", drafters=(), version="1", joined_at=0.0, seen_at=0.0)
    await store.runners.join(old)
    await store.runners.join(replace(old, url="http://new:1", seen_at=86_401.0))
    assert [runner.url for runner in await store.runners.all()] == ["http://new:1"]


async def test_two_stores_on_one_database_see_each_others_changes(url: str) -> None:
    async with store_at(url) as one, store_at(url) as other:
        await one.backends.add(REGISTERED)
        assert await other.backends.all() == (REGISTERED,)
        assert await other.meta.changes() == await one.meta.changes()


async def test_a_store_without_tables_is_a_store_error(url: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    store = Store(url)
    with pytest.raises(StoreError, match=r"no such table|relation .* does not exist"):
        await store.backends.all()
    await store.close()


async def test_a_file_that_is_no_database_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ace.db").write_text("this is no database " * 100)
    store = Store(store_url(tmp_path))
    with pytest.raises(StoreError, match="not a database"):
        await store.migrate()
    await store.close()


async def test_a_store_error_is_answered_as_unavailable(tmp_path: Path) -> None:
    store = Store(store_url(tmp_path))
    with pytest.raises(StoreError) as failed:
        await store.backends.all()
    assert (failed.value.status, failed.value.code) == (503, "store_unavailable")
    assert str(tmp_path) in str(failed.value)
    await store.close()


async def test_the_file_holds_what_was_committed(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.backends.add(REGISTERED)
    with sqlite3.connect(tmp_path / "data" / "ace.db") as plain:
        assert plain.execute("SELECT name, credential FROM backends").fetchall() == [("gpu-1", "env:GPU_KEY")]
    plain.close()


async def test_a_write_whose_caller_is_cancelled_is_finished(store: Store) -> None:
    for attempt in range(20):
        writing = asyncio.create_task(store.backends.add(registered(replace(BACKEND, name=f"b{attempt}"))))
        for _ in range(attempt):
            await asyncio.sleep(0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    # The first was cancelled before it had begun.
    assert len(await store.backends.all()) == 19


async def test_a_failure_that_nobody_waits_for_is_no_noise(store: Store) -> None:
    await store.backends.add(REGISTERED)
    writing = asyncio.create_task(store.backends.add(REGISTERED))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await store.backends.all() == (REGISTERED,)
