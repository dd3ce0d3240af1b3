"""What a file declares, beside what was registered by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Conflict
from gateway.fleet.declared import difference
from gateway.fleet.model import BackendState, Declaration, Registered
from gateway.fleet.registry import Registry
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import declared
from tests.fakes.probing import ScriptedHealth, ScriptedProbe, examiner_of
from tests.fakes.stores import opened_store, store_url

FILE = "/etc/ace/fleet.yaml"
A, B = declared(name="a", url="http://10.0.0.1:8000"), declared(name="b", url="http://10.0.0.2:8000")


class Fleet:
    """A registry and the scripts around it."""

    def __init__(self, store: Store, owner: str = "one") -> None:
        self.probe, self.health, self.clock = ScriptedProbe(), ScriptedHealth(), FakeClock()
        examiner = examiner_of(self.probe, self.health, self.clock)
        self.registry = Registry(store=store, examiner=examiner, clock=self.clock, owner=owner)

    async def declare(self, *declarations: Declaration) -> None:
        await self.registry.declare(FILE, declarations)

    def by_name(self) -> dict[str, str | None]:
        return {backend.name: backend.declared_by for backend in self.registry.all()}


@pytest.fixture
def fleet(store: Store) -> Fleet:
    return Fleet(store)


async def test_what_is_declared_is_registered_and_probed_soon(fleet: Fleet, store: Store) -> None:
    await fleet.declare(A, B)
    assert fleet.by_name() == {"a": FILE, "b": FILE}
    assert await store.backends.all() == fleet.registry.all()
    await fleet.registry.check_suspects_once()
    assert {backend.state for backend in fleet.registry.snapshot().backends} == {BackendState.UP}


async def test_what_is_taken_out_of_the_file_is_removed_and_what_was_added_by_hand_is_not(
    fleet: Fleet,
) -> None:
    await fleet.registry.add(declared(name="mine", url="http://10.0.0.9:8000"))
    await fleet.declare(A, B)
    await fleet.declare(B)
    assert fleet.by_name() == {"b": FILE, "mine": None}


async def test_declaring_the_same_again_changes_nothing(fleet: Fleet, store: Store) -> None:
    await fleet.declare(A)
    await fleet.registry.check_suspects_once()
    before, changes = fleet.registry.all(), await store.meta.changes()
    await fleet.declare(A)
    assert (fleet.registry.all(), await store.meta.changes()) == (before, changes)


async def test_a_changed_list_keeps_what_is_known_of_the_instances_that_stay(fleet: Fleet) -> None:
    await fleet.declare(declared(name="a", urls=["http://10.0.0.1", "http://10.0.0.2"]))
    await fleet.registry.check_suspects_once()
    kept = fleet.registry.get("a").instances[1]
    await fleet.declare(declared(name="a", urls=["http://10.0.0.2", "http://10.0.0.3"]))
    assert fleet.registry.get("a").instances[0] == kept


async def test_a_changed_credential_is_a_reason_to_probe(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", "s3cret-key")
    await fleet.declare(A)
    await fleet.registry.check_suspects_once()
    await fleet.declare(declared(name="a", url=A.urls[0], credential="env:GPU_KEY"))
    await fleet.registry.check_suspects_once()
    assert fleet.probe.asked[-1]["headers"] == {"authorization": "Bearer s3cret-key"}
    assert len(fleet.probe.asked) == 2


async def test_a_tokenizer_that_cannot_be_loaded_is_named_and_the_backend_serves(
    fleet: Fleet, tmp_path: Path
) -> None:
    folder = str(tmp_path / "nothing-here")
    await fleet.declare(declared(name="a", url=A.urls[0], tokenizer=folder))
    await fleet.registry.check_suspects_once()
    assert fleet.registry.get("a").whole.state is BackendState.UP
    (unusable,) = fleet.registry.refused()
    assert unusable.startswith(f"{FILE}: backend 'a': The gateway finds no tokenizer file")
    await fleet.declare(A)
    assert fleet.registry.refused() == ()


async def test_a_name_registered_by_hand_is_left_alone_and_named(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url="http://10.0.0.9:8000"))
    await fleet.declare(A, B)
    assert fleet.by_name() == {"a": None, "b": FILE}
    (refused,) = fleet.registry.refused()
    assert refused.startswith(f"{FILE}: backend 'a' is registered by hand already")


async def test_the_file_has_its_word_once_the_one_registered_by_hand_is_gone(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url="http://10.0.0.9:8000"))
    await fleet.declare(A)
    await fleet.registry.remove("a")
    for _ in range(2):
        await fleet.registry.sync_once()
    assert (fleet.by_name(), fleet.registry.refused()) == ({"a": FILE}, ())


async def test_what_a_file_declares_is_not_removed_or_taken_by_hand(fleet: Fleet) -> None:
    await fleet.declare(A)
    with pytest.raises(Conflict, match=FILE):
        await fleet.registry.remove("a")
    with pytest.raises(Conflict, match="'a' is registered already"):
        await fleet.registry.add(A)
    assert fleet.by_name() == {"a": FILE}


async def test_a_gateway_that_follows_no_file_any_more_lets_its_backends_be_removed(
    fleet: Fleet, store: Store
) -> None:
    await fleet.declare(A)
    after = Fleet(store)
    await after.registry.sync_once()
    await after.registry.remove("a")
    assert await store.backends.all() == ()


async def test_several_processes_declare_the_same_at_once(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        fleets = [Fleet(one, "one"), Fleet(other, "other")]
        await asyncio.gather(*(fleet.declare(A, B) for fleet in fleets))
        for fleet in fleets:
            await fleet.registry.sync_once()
        assert [fleet.by_name() for fleet in fleets] == [{"a": FILE, "b": FILE}] * 2


async def test_a_process_that_has_not_seen_the_newer_file_does_not_bring_the_older_back(
    tmp_path: Path,
) -> None:
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        newer, older = Fleet(one, "one"), Fleet(other, "other")
        await older.declare(A)
        await newer.declare(A)
        await newer.declare(B)
        for _ in range(3):
            await older.registry.sync_once()
        assert older.by_name() == {"b": FILE}


@pytest.fixture
async def without_store(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet whose store has gone."""
    async with opened_store(tmp_path) as store:
        await Fleet(store).declare(A)
    (tmp_path / "data").rename(tmp_path / "gone")
    opened = Store(store_url(tmp_path))
    yield Fleet(opened)
    with suppress(FileNotFoundError):
        (tmp_path / "gone").rename(tmp_path / "data")
    await opened.close()


async def test_without_the_store_the_file_is_in_force_all_the_same(
    without_store: Fleet, tmp_path: Path
) -> None:
    await without_store.declare(A, B)
    await without_store.registry.check_suspects_once()
    assert [b.url for b in without_store.registry.snapshot().serving("m")] == [A.urls[0], B.urls[0]]
    await without_store.declare(B)
    assert without_store.by_name() == {"b": FILE}
    (tmp_path / "gone").rename(tmp_path / "data")
    await without_store.registry.sync_once()
    assert without_store.by_name() == {"b": FILE}
    async with opened_store(tmp_path) as store:
        assert [backend.name for backend in await store.backends.all()] == ["b"]


declarations = st.builds(
    lambda name, port: declared(name=name, url=f"http://gpu:{port}"),
    st.sampled_from("abcd"),
    st.integers(8000, 8002),
)
fleets = st.lists(declarations, unique_by=lambda declaration: declaration.name)


@given(fleets, fleets, fleets)
def test_after_a_difference_is_made_there_is_none(
    by_hand: list[Declaration], before: list[Declaration], now: list[Declaration]
) -> None:
    hands = {declaration.name: Registered(declaration=declaration) for declaration in by_hand}
    known = {d.name: Registered(declaration=d, declared_by=FILE) for d in before} | hands
    wanted = difference(now, known.values())
    for declaration in now:
        if declaration.name not in hands:
            known[declaration.name] = Registered(declaration=declaration, declared_by=FILE)
    known = {name: backend for name, backend in known.items() if name not in wanted.removed}
    after = difference(now, known.values())
    assert (after.added, after.changed, after.removed) == ((), (), ())
    assert set(after.refused) == hands.keys() & {declaration.name for declaration in now}
    assert hands.items() <= known.items(), "what was registered by hand stays as it is"
