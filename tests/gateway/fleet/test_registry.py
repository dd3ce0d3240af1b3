"""The registry: nothing lost, states that follow the servers, several processes in agreement."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import Conflict, MalformedRequest, NotFound, StoreError
from gateway.fleet.model import Backend, BackendState, EngineKind
from gateway.fleet.registry import Registry
from gateway.store.store import Store
from probes.model import Capability, Finding, Support
from probes.suite import ProbeResult
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import declared
from tests.fakes.probing import (
    ALIVE,
    AWAY,
    IN_ENGINE,
    REFUSED,
    SLOW,
    UP,
    ScriptedHealth,
    ScriptedProbe,
    examiner_of,
)
from tests.fakes.stores import opened_store, store_url
from tests.fakes.waiting import until

URL = "http://127.0.0.1:8100"


class Fleet:
    """A registry and the scripts around it."""

    def __init__(self, store: Store, owner: str = "one", clock: FakeClock | None = None) -> None:
        self.probe, self.health, self.clock = ScriptedProbe(), ScriptedHealth(), clock or FakeClock()
        self.registry = Registry(
            store=store,
            examiner=examiner_of(self.probe, self.health, self.clock),
            clock=self.clock,
            owner=owner,
        )

    def state(self, name: str = "a") -> tuple[BackendState, str]:
        backend = self.registry.get(name).whole
        return backend.state, backend.state_reason


@pytest.fixture
def fleet(store: Store) -> Fleet:
    return Fleet(store)


async def test_a_server_that_answers_is_registered_as_up(fleet: Fleet) -> None:
    added = (await fleet.registry.add(declared(name="a", url=f"{URL}/v1/"))).whole
    assert added == Backend(
        name="a",
        url=URL,
        kind=EngineKind.EMBEDDED,
        state=BackendState.UP,
        state_reason="",
        models=("m",),
        findings={Capability.IN_ENGINE: IN_ENGINE},
        probed_at=fleet.clock.now,
        process_since=fleet.clock.now,
    )
    assert fleet.registry.snapshot().serving("m") == (added,)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("auto", "auto"),
        ("openai", "openai"),
        ("embedded", "embedded"),
        ("vllm", "openai"),
        ("sglang", "openai"),
    ],
)
async def test_the_declared_kind_chooses_the_suite(fleet: Fleet, said: str, asked: str) -> None:
    added = (await fleet.registry.add(declared(name="a", url=URL, kind=said))).whole
    assert fleet.probe.asked == [{"url": URL, "kind": asked, "headers": {}}]
    assert added.declared_kind == said


async def test_an_unreachable_server_is_kept_as_down_with_reason_and_evidence(
    fleet: Fleet, store: Store
) -> None:
    fleet.probe.answer = AWAY
    added = (await fleet.registry.add(declared(name="a", url=URL))).whole
    assert (added.state, added.state_reason) == (BackendState.DOWN, "no connection")
    assert added.findings[Capability.MODELS].evidence == "no connection"
    assert [backend.whole for backend in await store.backends.all()] == [added]


async def test_a_probe_that_fails_in_itself_loses_nothing(
    fleet: Fleet, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.probe.answer = RuntimeError("bug")
    added = (await fleet.registry.add(declared(name="a", url=URL))).whole
    assert (added.state, added.state_reason) == (BackendState.DOWN, "probing failed: RuntimeError")
    assert [backend.whole for backend in await store.backends.all()] == [added]
    assert "bug" in caplog.text


async def test_a_probe_that_hangs_is_told_apart(fleet: Fleet) -> None:
    fleet.probe.answer = TimeoutError()
    added = (await fleet.registry.add(declared(name="a", url=URL))).whole
    assert added.state_reason == "probing did not end within 90 s"


async def test_the_backends_key_is_read_by_reference_and_sent(
    fleet: Fleet, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", "s3cret-key")
    added = (await fleet.registry.add(declared(name="a", url=URL, credential="env:GPU_KEY"))).whole
    await fleet.registry.check_health_once()
    assert fleet.probe.asked[0]["headers"] == {"authorization": "Bearer s3cret-key"}
    assert fleet.health.asked[0][1] == {"authorization": "Bearer s3cret-key"}
    assert added.credential == "env:GPU_KEY"
    assert "s3cret" not in repr(await store.backends.all())


async def test_a_key_that_is_not_there_is_the_reason_and_nothing_is_asked(fleet: Fleet) -> None:
    added = (await fleet.registry.add(declared(name="a", url=URL, credential="env:NOT_SET_ANYWHERE"))).whole
    await fleet.registry.check_health_once()
    assert added.state is BackendState.DOWN
    assert "'env:NOT_SET_ANYWHERE'" in added.state_reason
    assert (fleet.probe.asked, fleet.health.asked) == ([], [])


async def test_a_taken_name_is_a_conflict_and_changes_nothing(fleet: Fleet) -> None:
    first = await fleet.registry.add(declared(name="a", url=URL))
    with pytest.raises(Conflict):
        await fleet.registry.add(declared(name="a", url="http://127.0.0.1:9000"))
    assert fleet.registry.all() == (first,)
    assert len(fleet.probe.asked) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "backend name"),
        ({"name": "-a"}, "backend name"),
        ({"name": "a/b"}, "backend name"),
        ({"name": "a\n"}, "backend name"),
        ({"name": "x" * 65}, "backend name"),
        ({"url": "http://169.254.169.254"}, "link-local"),
        ({"credential": "sk-literal"}, "env:NAME"),
    ],
)
async def test_what_is_not_allowed_is_refused_before_anything_is_kept(
    fleet: Fleet, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(MalformedRequest, match=message):
        await fleet.registry.add(declared(**{"name": "a", "url": URL, **changes}))
    assert fleet.registry.snapshot().backends == ()
    assert fleet.probe.asked == []


async def test_removing_forgets_and_frees_the_name(fleet: Fleet, store: Store) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    await fleet.registry.remove("a")
    assert fleet.registry.snapshot().backends == ()
    assert await store.backends.all() == ()
    await fleet.registry.add(declared(name="a", url=URL))


async def test_an_unknown_name_says_which_are_known(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    for unknown in (fleet.registry.remove("b"), fleet.registry.reprobe("b")):
        with pytest.raises(NotFound, match=r"'b'\. Registered: a"):
            await unknown


async def test_probing_again_replaces_the_findings(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    no = Finding(capability=Capability.IN_ENGINE, support=Support.NO, evidence="no metrics")
    fleet.probe.answer = replace(UP, findings=(no,), models=("m2",))
    fleet.clock.advance(10)
    probed = (await fleet.registry.reprobe("a")).whole
    assert probed.findings == {Capability.IN_ENGINE: no}
    assert probed.models == ("m2",)
    assert probed.probed_at == fleet.clock.now


async def test_a_server_that_is_away_keeps_its_models_and_what_was_known(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    fleet.probe.answer = AWAY
    probed = (await fleet.registry.reprobe("a")).whole
    assert probed.state is BackendState.DOWN
    assert (probed.kind, probed.models) == (EngineKind.EMBEDDED, ("m",))
    assert probed.supports(Capability.IN_ENGINE) is Support.YES
    assert probed.findings[Capability.MODELS].evidence == "no connection"


async def test_a_server_that_turns_out_to_be_another_kind_is_down_with_its_new_kind(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL, kind="embedded"))
    fleet.probe.answer = ProbeResult(
        kind="openai", up=False, reason="it was declared embedded", models=("x",), findings=()
    )
    probed = (await fleet.registry.reprobe("a")).whole
    assert (probed.kind, probed.models, probed.findings) == (EngineKind.OPENAI, ("x",), {})


# Health


async def test_a_refused_connection_takes_a_backend_down_at_once(fleet: Fleet, store: Store) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    fleet.health.answer = REFUSED
    await fleet.registry.check_health_once()
    assert fleet.state() == (BackendState.DOWN, "connection refused")
    assert (await store.backends.all())[0].whole.state is BackendState.DOWN
    assert fleet.registry.snapshot().serving("m")[0].name == "a"


async def test_a_slow_answer_takes_a_backend_down_only_when_it_lasts(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    fleet.health.answer = SLOW
    await fleet.registry.check_health_once()
    await fleet.registry.check_health_once()
    assert fleet.state() == (BackendState.UP, "")
    fleet.health.answer = ALIVE
    await fleet.registry.check_health_once()
    fleet.health.answer = SLOW
    for _ in range(2):
        await fleet.registry.check_health_once()
    assert fleet.state() == (BackendState.UP, "")
    await fleet.registry.check_health_once()
    assert fleet.state() == (BackendState.DOWN, "not answered within 5 s")


async def test_a_backend_that_is_back_is_probed_before_it_is_up(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    fleet.health.answer = REFUSED
    await fleet.registry.check_health_once()
    fleet.health.answer = ALIVE
    fleet.probe.answer = replace(UP, models=("other",))
    await fleet.registry.check_health_once()
    assert fleet.state() == (BackendState.UP, "")
    assert fleet.registry.get("a").whole.models == ("other",)
    assert len(fleet.probe.asked) == 2


async def test_a_healthy_backend_is_not_probed_again(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    for _ in range(5):
        await fleet.registry.check_health_once()
        fleet.clock.advance(600)
    assert len(fleet.probe.asked) == 1


async def test_another_list_of_models_is_a_reason_to_probe(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    await fleet.registry.check_health_once()
    fleet.health.answer = replace(ALIVE, models=frozenset({"m", "n"}))
    fleet.probe.answer = replace(UP, models=("m", "n"))
    for _ in range(3):
        await fleet.registry.check_health_once()
    assert fleet.registry.get("a").whole.models == ("m", "n")
    assert len(fleet.probe.asked) == 2


async def test_a_server_that_answers_but_cannot_be_used_is_asked_less_and_less(fleet: Fleet) -> None:
    fleet.probe.answer = replace(AWAY, reason="it lists no models")
    await fleet.registry.add(declared(name="a", url=URL))
    probed_at = []
    for second in range(0, 200, 5):
        before = len(fleet.probe.asked)
        await fleet.registry.check_health_once()
        if len(fleet.probe.asked) > before:
            probed_at.append(second)
        fleet.clock.advance(5)
    assert probed_at == [5, 15, 35, 75, 155]


async def test_findings_of_before_the_gateways_start_are_asked_again(store: Store) -> None:
    before = Fleet(store)
    await before.registry.add(declared(name="a", url=URL))
    before.clock.advance(3600)
    after = Fleet(store, clock=before.clock)
    await after.registry.sync_once()
    for _ in range(2):
        await after.registry.check_health_once()
    assert len(after.probe.asked) == 1


async def test_a_reported_backend_is_looked_at_and_only_then_taken_down(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    fleet.registry.report_unreachable("a", "refused")
    await fleet.registry.check_suspects_once()
    assert fleet.state() == (BackendState.UP, "")
    fleet.health.answer = REFUSED
    fleet.registry.report_unreachable("a", "refused")
    assert fleet.state() == (BackendState.UP, "")
    await fleet.registry.check_suspects_once()
    assert fleet.state() == (BackendState.DOWN, "connection refused")


async def test_reports_of_backends_that_are_down_or_unknown_ask_nothing(fleet: Fleet) -> None:
    fleet.probe.answer = AWAY
    await fleet.registry.add(declared(name="a", url=URL))
    for name in ("a", "nobody"):
        fleet.registry.report_unreachable(name, "refused")
    await fleet.registry.check_suspects_once()
    assert fleet.health.asked == []


async def test_a_change_of_state_is_logged_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway.fleet")
    await fleet.registry.add(declared(name="a", url=URL))
    for answer in (REFUSED, replace(REFUSED, reason="no route to host"), ALIVE):
        fleet.health.answer = answer
        for _ in range(3):
            await fleet.registry.check_health_once()
    assert [record.getMessage() for record in caplog.records] == [
        "backend a is up",
        "backend a is down: connection refused",
        "backend a is up",
    ]


async def test_one_failing_look_leaves_the_others_alone(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    await fleet.registry.add(declared(name="b", url=URL, credential="env:NOT_SET_ANYWHERE"))
    fleet.health.answer = REFUSED
    await fleet.registry.check_health_once()
    assert fleet.state("a") == (BackendState.DOWN, "connection refused")


async def test_a_backend_that_is_being_probed_is_not_probed_twice(fleet: Fleet) -> None:
    fleet.probe.hold.clear()
    adding = asyncio.create_task(fleet.registry.add(declared(name="a", url=URL)))
    await fleet.probe.started.wait()
    await fleet.registry.check_health_once()
    fleet.probe.hold.set()
    await adding
    assert len(fleet.probe.asked) == 1


async def test_a_backend_removed_while_it_is_probed_does_not_come_back(fleet: Fleet, store: Store) -> None:
    fleet.probe.hold.clear()
    adding = asyncio.create_task(fleet.registry.add(declared(name="a", url=URL)))
    await fleet.probe.started.wait()
    await fleet.registry.remove("a")
    fleet.probe.hold.set()
    with pytest.raises(NotFound):
        await adding
    assert fleet.registry.snapshot().backends == ()
    assert await store.backends.all() == ()


async def test_an_old_probe_says_nothing_of_a_backend_that_took_the_name(fleet: Fleet) -> None:
    fleet.probe.hold.clear()
    adding = asyncio.create_task(fleet.registry.add(declared(name="a", url=URL)))
    await fleet.probe.started.wait()
    await fleet.registry.remove("a")
    replacing = asyncio.create_task(fleet.registry.add(declared(name="a", url="http://127.0.0.1:9000")))
    await until(lambda: len(fleet.probe.asked) == 2)
    fleet.probe.hold.set()
    with pytest.raises(NotFound):
        await adding
    await replacing
    assert fleet.registry.get("a").whole.url == "http://127.0.0.1:9000"


# Several processes


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Fleet, Fleet]]:
    clock = FakeClock()
    async with opened_store(tmp_path) as one, opened_store(tmp_path) as other:
        yield Fleet(one, "one", clock), Fleet(other, "other", clock)


async def test_processes_agree_after_a_sync(two: tuple[Fleet, Fleet]) -> None:
    one, other = two
    await one.registry.add(declared(name="a", url=URL))
    await other.registry.sync_once()
    assert other.registry.snapshot() == one.registry.snapshot()
    await other.registry.add(declared(name="b", url=URL))
    await other.registry.remove("a")
    await one.registry.sync_once()
    assert [backend.name for backend in one.registry.snapshot().backends] == ["b"]
    assert one.registry.snapshot() == other.registry.snapshot()


async def test_a_sync_without_changes_keeps_the_very_snapshot(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    await fleet.registry.sync_once()
    snapshot = fleet.registry.snapshot()
    await fleet.registry.sync_once()
    assert fleet.registry.snapshot() is snapshot


async def test_one_process_looks_at_backends_for_all(two: tuple[Fleet, Fleet]) -> None:
    one, other = two
    await one.registry.add(declared(name="a", url=URL))
    await other.registry.sync_once()
    for _ in range(3):
        await one.registry.check_health_once()
        await other.registry.check_health_once()
        one.clock.advance(5)
    assert (len(one.health.asked), len(other.health.asked)) == (3, 0)
    one.clock.advance(20)
    await other.registry.check_health_once()
    assert len(other.health.asked) == 1


async def test_a_backend_that_another_process_is_probing_is_left_to_it(two: tuple[Fleet, Fleet]) -> None:
    one, other = two
    one.probe.hold.clear()
    adding = asyncio.create_task(one.registry.add(declared(name="a", url=URL)))
    await one.probe.started.wait()
    await other.registry.sync_once()
    await other.registry.check_health_once()
    assert other.probe.asked == []
    one.probe.hold.set()
    await adding
    await other.registry.sync_once()
    assert other.state() == (BackendState.UP, "")


async def test_any_process_may_take_a_reported_backend_down_for_all(two: tuple[Fleet, Fleet]) -> None:
    one, other = two
    await one.registry.add(declared(name="a", url=URL))
    await one.registry.check_health_once()
    await other.registry.sync_once()
    other.health.answer = REFUSED
    other.registry.report_unreachable("a", "refused")
    await other.registry.check_suspects_once()
    await one.registry.sync_once()
    assert one.state() == (BackendState.DOWN, "connection refused")


# Store outages


@pytest.fixture
async def without_store(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet that was read, and whose store has then gone."""
    async with opened_store(tmp_path) as store:
        await Fleet(store).registry.add(declared(name="a", url=URL))
    opened = Store(store_url(tmp_path))
    fleet = Fleet(opened)
    await fleet.registry.sync_once()
    await opened.close()
    (tmp_path / "data").rename(tmp_path / "gone")
    yield fleet
    with suppress(FileNotFoundError):
        (tmp_path / "gone").rename(tmp_path / "data")
    await opened.close()


async def test_the_fleet_stays_while_the_store_is_gone(
    without_store: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await without_store.registry.sync_once()
    assert without_store.state() == (BackendState.UP, "")
    assert without_store.registry.loaded
    assert "unable to open" in (without_store.registry.store_error or "")
    assert len(caplog.records) == 1


async def test_health_is_still_followed_while_the_store_is_gone(without_store: Fleet) -> None:
    without_store.health.answer = REFUSED
    await without_store.registry.check_health_once()
    assert without_store.state() == (BackendState.DOWN, "connection refused")
    without_store.health.answer = ALIVE
    await without_store.registry.check_health_once()
    assert without_store.state() == (BackendState.UP, "")


async def test_an_operator_is_told_that_the_store_is_gone(without_store: Fleet) -> None:
    with pytest.raises(StoreError):
        await without_store.registry.add(declared(name="b", url=URL))
    assert [backend.name for backend in without_store.registry.snapshot().backends] == ["a"]


async def test_a_store_that_is_back_is_used_again(without_store: Fleet, tmp_path: Path) -> None:
    await without_store.registry.sync_once()
    (tmp_path / "gone").rename(tmp_path / "data")
    await without_store.registry.sync_once()
    assert without_store.registry.store_error is None
    await without_store.registry.add(declared(name="b", url=URL))


async def test_a_registry_that_was_never_read_is_not_loaded(tmp_path: Path) -> None:
    store = Store(store_url(tmp_path))
    fleet = Fleet(store)
    await fleet.registry.sync_once()
    assert not fleet.registry.loaded
    await store.close()


# The task


@asynccontextmanager
async def running(registry: Registry, interval_s: float) -> AsyncIterator[None]:
    task = asyncio.create_task(registry.run(sync_interval_s=interval_s, health_interval_s=interval_s))
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_running_keeps_up_with_others_and_with_health(two: tuple[Fleet, Fleet]) -> None:
    one, other = two
    await one.registry.add(declared(name="a", url=URL))
    async with running(other.registry, 0.001):
        await until(lambda: len(other.registry.snapshot().backends) == 1)
        other.health.answer = REFUSED
        await until(lambda: other.state()[0] is BackendState.DOWN)


async def test_running_looks_at_a_reported_backend_without_waiting_for_the_next_round(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=URL))
    async with running(fleet.registry, 3600.0):
        await until(lambda: len(fleet.health.asked) == 1)
        fleet.health.answer = REFUSED

        def reported_until_down() -> bool:
            fleet.registry.report_unreachable("a", "refused")
            return fleet.state()[0] is BackendState.DOWN

        await until(reported_until_down)
