"""Policies kept in the store, and the history of those that came into force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import Conflict, PolicyError
from gateway.policy.load import DEFAULT_POLICY
from gateway.policy.stored import FileHistory, StoredPolicy, seed
from gateway.policy.watch import PolicyHolder
from gateway.store.model import PolicyRevision, PolicyText
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.stores import opened_store, store_url


def text_of(name: str) -> str:
    return f"# why {name}\r\nversion: 1\nrules:\n  - {{name: {name}, mode: shadow}}   # as it was\n"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def stored(store: Store, clock: FakeClock) -> StoredPolicy:
    return await synced(store, clock)


async def synced(store: Store, clock: FakeClock) -> StoredPolicy:
    policy = StoredPolicy(store=store, clock=clock)
    await policy.sync_once()
    return policy


async def put(policy: StoredPolicy, name: str, based_on: str | None = None) -> PolicyRevision:
    based_on = policy.current.revision if based_on is None else based_on
    return await policy.put(text_of(name), based_on=based_on, author="ann", reason=f"try {name}")


def rule_of(policy: StoredPolicy | PolicyHolder) -> str:
    return policy.current.policy.rules[0].name


async def test_an_empty_store_leaves_everything_off(stored: StoredPolicy) -> None:
    assert (stored.current.policy, stored.current.revision, stored.error) == (DEFAULT_POLICY, "default", None)


async def test_a_store_that_has_not_been_read_says_so(tmp_path: Path, clock: FakeClock) -> None:
    down = Store(store_url(tmp_path / "none"))
    policy = await synced(down, clock)
    assert policy.current.policy == DEFAULT_POLICY
    assert "not been read from the store yet" in (policy.error or "")
    await down.close()


async def test_a_text_is_in_force_here_at_once_and_elsewhere_after_a_look(
    store: Store, stored: StoredPolicy, clock: FakeClock
) -> None:
    other = await synced(store, clock)
    kept = await put(stored, "first")
    assert (rule_of(stored), stored.current.text, kept.number) == ("first", text_of("first"), 1)
    assert other.current.revision == "default"
    await other.sync_once()
    assert (rule_of(other), other.current.revision) == ("first", kept.revision)


async def test_a_bad_text_says_where_and_changes_nothing(store: Store, stored: StoredPolicy) -> None:
    await put(stored, "first")
    with pytest.raises(PolicyError, match="policy:2: rulse is not a known key"):
        await stored.put("version: 1\nrulse: []\n", based_on=stored.current.revision, author="a", reason="b")
    assert rule_of(stored) == "first"
    assert len(await store.policies.latest(10)) == 1


async def test_of_two_that_edit_the_same_revision_the_second_is_told_of_the_first(
    store: Store, stored: StoredPolicy
) -> None:
    base = (await put(stored, "first")).revision
    second = await put(stored, "second", base)
    with pytest.raises(Conflict, match=f"{second.revision} is in force, number 2 by ann: try second"):
        await put(stored, "third", base)
    with pytest.raises(Conflict, match="already"):
        await put(stored, "second", second.revision)
    assert [one.revision for one in await store.policies.latest(10)] == [second.revision, base]


async def test_of_many_writers_at_once_one_wins(store: Store, stored: StoredPolicy) -> None:
    answers = await asyncio.gather(
        *(put(stored, f"rule{turn}", "default") for turn in range(8)), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Conflict"] * 7 + ["PolicyRevision"]
    assert len(await store.policies.latest(10)) == 1


async def test_the_first_is_based_on_default(stored: StoredPolicy) -> None:
    with pytest.raises(Conflict, match="based on `default`"):
        await put(stored, "first", "abc")


async def test_an_earlier_text_may_come_into_force_again(store: Store, stored: StoredPolicy) -> None:
    for name in ("first", "second", "first"):
        await put(stored, name)
    numbers = [(one.number, one.revision) for one in await store.policies.latest(10)]
    assert [number for number, _ in numbers] == [3, 2, 1]
    assert numbers[0][1] == numbers[2][1]
    by_revision = await store.policies.named(numbers[0][1])
    assert by_revision is not None
    assert by_revision.number == 3
    by_number = await store.policies.named("1")
    assert by_number is not None
    assert by_number.number == 1
    assert await store.policies.named("4") is None
    assert await store.policies.named("no such") is None


async def test_a_text_that_this_version_does_not_understand_keeps_the_last_good_one(
    store: Store, stored: StoredPolicy
) -> None:
    kept = await put(stored, "first")
    newer = PolicyText(
        revision="f" * 12,
        text="version: 1\nnew_key: 1\n",
        author="a",
        reason="b",
        source="store",
        created_at=kept.created_at + 1,
    )
    await store.policies.append(newer, after=kept.revision)
    await stored.sync_once()
    assert rule_of(stored) == "first"
    assert "policy 2:2: new_key" in (stored.error or "")
    await put(stored, "third", newer.revision)
    assert (rule_of(stored), stored.error) == ("third", None)


async def test_a_file_begins_an_empty_store_and_no_other(
    store: Store, stored: StoredPolicy, clock: FakeClock, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 2\n")
    with pytest.raises(PolicyError):
        await seed(store, file, clock)
    for name in ("first", "second"):
        file.write_bytes(text_of(name).encode())
        await seed(store, file, clock)
    await stored.sync_once()
    assert (rule_of(stored), stored.current.text) == ("first", text_of("first"))
    (only,) = await store.policies.latest(10)
    assert (only.author, only.reason) == ("ace serve", f"first start, from {file}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_bytes(text_of("first").encode())
    return file


def changed(holder: PolicyHolder, name: str) -> None:
    assert holder.path is not None
    holder.path.write_bytes(text_of(name).encode())
    holder.check_once()
    holder.check_once()


async def test_each_policy_of_a_file_is_kept_once_by_whichever_process_sees_it(
    store: Store, file: Path, clock: FakeClock
) -> None:
    holders = [PolicyHolder(file, clock) for _ in range(4)]
    histories = [FileHistory(store=store, current=lambda holder=holder: holder.current) for holder in holders]  # type: ignore[misc]
    for name in ("first", "second", "first"):
        clock.advance(1.0)
        for holder in holders:
            changed(holder, name)
        await asyncio.gather(*(history.keep_once() for history in histories))
        await asyncio.gather(*(history.keep_once() for history in histories))
    kept = await store.policies.latest(10)
    assert [one.text for one in kept] == [text_of(name) for name in ("first", "second", "first")]
    assert {(one.source, one.author) for one in kept} == {(str(file), "file")}


async def test_a_process_that_lags_behind_keeps_nothing_that_has_gone(
    store: Store, file: Path, clock: FakeClock
) -> None:
    late = PolicyHolder(file, clock)
    clock.advance(1.0)
    early = PolicyHolder(file, clock)
    changed(early, "second")
    await FileHistory(store=store, current=lambda: early.current).keep_once()
    await FileHistory(store=store, current=lambda: late.current).keep_once()
    assert [one.text for one in await store.policies.latest(10)] == [text_of("second")]


async def test_while_the_store_is_down_keeping_waits(
    store: Store, file: Path, clock: FakeClock, tmp_path: Path
) -> None:
    holder = PolicyHolder(file, clock)
    down = Store(store_url(tmp_path / "later"))
    history = FileHistory(store=down, current=lambda: holder.current)
    await history.keep_once()
    await down.migrate()
    await history.keep_once()
    assert len(await down.policies.latest(10)) == 1
    await down.close()


async def test_a_gateway_without_a_policy_keeps_nothing(store: Store, clock: FakeClock) -> None:
    holder = PolicyHolder(None, clock)
    await FileHistory(store=store, current=lambda: holder.current).keep_once()
    assert await store.policies.newest() is None


def test_a_byte_order_mark_is_part_of_the_text_and_no_part_of_the_policy(
    file: Path, clock: FakeClock
) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + text_of("first").encode())
    holder = PolicyHolder(file, clock)
    assert (holder.current.text or "").startswith("\ufeff#")
    assert rule_of(holder) == "first"


@pytest.mark.parametrize(
    ("path", "words"), [(True, "comes from the file .*policy.yaml"), (False, "--policy")]
)
async def test_where_a_file_decides_nothing_can_be_put(
    file: Path, clock: FakeClock, path: bool, words: str
) -> None:
    with pytest.raises(Conflict, match=words):
        await PolicyHolder(file if path else None, clock).put("", based_on="x", author="a", reason="b")
