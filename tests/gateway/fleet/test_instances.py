"""Several instances behind one name: each probed, looked at and counted alone."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.errors import MalformedRequest
from gateway.fleet.discovery import NotDiscovered
from gateway.fleet.health import Health
from gateway.fleet.model import Backend, BackendState, Process, Registered
from gateway.fleet.processes import CONSISTENT_LOOKS, Sighting
from gateway.fleet.registry import Registry
from gateway.store.store import Store
from probes.model import Capability, Finding, Support
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import declared
from tests.fakes.probing import ALIVE, REFUSED, UP, ScriptedHealth, ScriptedProbe, examiner_of
from tests.fakes.waiting import until

ONE, TWO, THREE = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))
NAME = "http://llama.pods.svc:8000"
OLD, NEW = Process(started_at=1000.0, version="0.31.0"), Process(started_at=2000.0, version="0.32.0")


class Fleet:
    """A registry, and scripts for servers and names."""

    def __init__(self, store: Store, clock: FakeClock | None = None) -> None:
        self.probe, self.health, self.clock = ScriptedProbe(), ScriptedHealth(), clock or FakeClock()
        self.addresses: Sequence[str] | str = ()
        self.wait_for: asyncio.Event | None = None
        self.registry = Registry(
            store=store,
            examiner=examiner_of(self.probe, self.health, self.clock, self._discover),
            clock=self.clock,
            owner="one",
        )

    async def _discover(self, url: str) -> tuple[str, ...]:
        if self.wait_for is not None:
            await self.wait_for.wait()
        if isinstance(self.addresses, str):
            raise NotDiscovered(self.addresses)
        return tuple(self.addresses)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.registry.check_health_once()
            self.clock.advance(5)

    def states(self) -> dict[str, str]:
        return {backend.key: str(backend.state) for backend in self.registry.snapshot().backends}

    def the_one(self) -> Backend:
        (instance,) = self.registry.get("a").instances
        return instance

    def shows(self, process: Process) -> None:
        self.health.answer = replace(ALIVE, sighting=Sighting(process=process))


@pytest.fixture
def fleet(store: Store) -> Fleet:
    return Fleet(store)


@pytest.fixture
async def pair(fleet: Fleet) -> Fleet:
    await fleet.registry.add(declared(name="a", urls=[ONE, TWO]))
    return fleet


async def test_each_url_of_a_list_is_an_instance_and_is_probed(pair: Fleet) -> None:
    assert [asked["url"] for asked in pair.probe.asked] == [ONE, TWO]
    assert pair.states() == {f"a@{ONE}": "up", f"a@{TWO}": "up"}
    assert [backend.url for backend in pair.registry.snapshot().serving("m")] == [ONE, TWO]
    assert pair.registry.get("a").whole.state is BackendState.UP


async def test_one_instance_that_is_down_takes_only_itself_out(pair: Fleet) -> None:
    pair.health.answers[ONE] = REFUSED
    await pair.look()
    assert pair.states() == {f"a@{ONE}": "down", f"a@{TWO}": "up"}
    whole = pair.registry.get("a").whole
    assert (whole.state, whole.state_reason) == (BackendState.UP, "")
    assert [backend.url for backend in pair.registry.snapshot().serving("m")] == [TWO, ONE]


async def test_with_all_down_each_one_says_why(pair: Fleet) -> None:
    pair.health.answers = {ONE: REFUSED, TWO: replace(REFUSED, reason="no route to host")}
    await pair.look()
    whole = pair.registry.get("a").whole
    assert whole.state is BackendState.DOWN
    assert whole.state_reason == f"{ONE}: connection refused; {TWO}: no route to host"


async def test_an_instance_that_was_reported_is_looked_at_alone(pair: Fleet) -> None:
    pair.health.asked.clear()
    pair.registry.report_unreachable(f"a@{TWO}", "refused")
    await pair.registry.check_suspects_once()
    assert [url for url, _ in pair.health.asked] == [TWO]


async def test_findings_that_instances_do_not_share_are_the_least_of_them_and_named(pair: Fleet) -> None:
    no = Finding(capability=Capability.IN_ENGINE, support=Support.NO, evidence="no metrics")
    pair.probe.answer = replace(UP, findings=(no,))
    pair.health.answers[TWO] = REFUSED
    await pair.look()
    pair.health.answers.clear()
    await pair.look()
    registered = pair.registry.get("a")
    assert registered.differing == (Capability.IN_ENGINE,)
    merged = registered.whole.findings[Capability.IN_ENGINE]
    assert merged.support is Support.NO
    assert merged.evidence == f"its instances differ: {ONE} yes, {TWO} no"


async def test_instances_come_back_from_the_store_as_they_were(pair: Fleet, store: Store) -> None:
    pair.health.answers[ONE] = replace(ALIVE, sighting=Sighting(process=OLD))
    pair.health.answers[TWO] = REFUSED
    await pair.look()
    other = Fleet(store, pair.clock)
    await other.registry.sync_once()
    assert other.registry.all() == pair.registry.all()
    assert other.registry.get("a").instances[0].process == OLD


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either `url`, or `urls`"),
        ({"url": ONE, "urls": [TWO]}, "either `url`, or `urls`"),
        ({"urls": [ONE, f"{ONE}/v1/"]}, "given twice"),
        ({"urls": [ONE, "http://169.254.169.254"]}, "link-local"),
        ({"urls": [ONE, TWO], "discovery": "dns"}, "takes one URL"),
        ({"url": ONE, "discovery": "dns"}, "needs a URL with a name"),
    ],
)
def test_what_names_no_instances_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(MalformedRequest, match=words):
        declared(name="a", **given)


# Names


async def named(fleet: Fleet, *addresses: str) -> Registered:
    fleet.addresses = addresses
    return await fleet.registry.add(declared(name="a", url=NAME, discovery="dns"))


async def test_each_address_of_a_name_is_an_instance(fleet: Fleet) -> None:
    added = await named(fleet, "10.0.0.1", "10.0.0.2")
    assert [(i.key, i.url, i.address) for i in added.instances] == [
        ("a@10.0.0.1", NAME, "10.0.0.1"),
        ("a@10.0.0.2", NAME, "10.0.0.2"),
    ]
    assert fleet.states() == {"a@10.0.0.1": "up", "a@10.0.0.2": "up"}


async def test_addresses_come_and_go_without_losing_what_is_known_of_those_that_stay(fleet: Fleet) -> None:
    added = await named(fleet, "10.0.0.1", "10.0.0.2")
    fleet.clock.advance(60)
    fleet.addresses = ("10.0.0.2", "10.0.0.3")
    await fleet.look()
    kept, new = fleet.registry.get("a").instances
    assert kept == added.instances[1]
    assert (new.address, new.state, new.process_since) == ("10.0.0.3", BackendState.UP, added_at(fleet))
    assert len(fleet.probe.asked) == 3


def added_at(fleet: Fleet) -> float:
    return fleet.clock.now - 5


async def test_a_name_that_cannot_be_resolved_keeps_its_instances_and_warns_once(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await named(fleet, "10.0.0.1", "10.0.0.2")
    fleet.addresses = "llama.pods.svc does not resolve: SERVFAIL"
    await fleet.look(3)
    assert fleet.states() == {"a@10.0.0.1": "up", "a@10.0.0.2": "up"}
    (warning,) = fleet.registry.get("a").warnings()
    assert "SERVFAIL" in warning
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "backend a keeps its instances: llama.pods.svc does not resolve: SERVFAIL"
    ]
    fleet.addresses = ("10.0.0.1", "10.0.0.2")
    await fleet.look()
    assert list(fleet.registry.get("a").warnings()) == []


async def test_a_name_without_an_address_is_a_backend_that_is_down(fleet: Fleet) -> None:
    fleet.addresses = "llama.pods.svc does not resolve: NXDOMAIN"
    added = await fleet.registry.add(declared(name="a", url=NAME, discovery="dns"))
    assert (added.instances, added.whole.state) == ((), BackendState.DOWN)
    assert added.whole.state_reason == "llama.pods.svc does not resolve: NXDOMAIN"
    assert fleet.states() == {"a": "down"}
    fleet.addresses = ("10.0.0.1",)
    await fleet.look()
    assert fleet.states() == {"a@10.0.0.1": "up"}


async def test_an_ordinary_name_is_one_instance_however_many_addresses_it_has(fleet: Fleet) -> None:
    fleet.addresses = ("10.0.0.1", "10.0.0.2")
    await fleet.registry.add(declared(name="a", url=NAME))
    await fleet.look()
    assert fleet.states() == {"a": "up"}


# Restarts, and several processes behind one URL


async def test_a_server_that_was_restarted_is_probed_at_once(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=ONE))
    fleet.shows(OLD)
    await fleet.look(3)
    assert len(fleet.probe.asked) == 1
    assert fleet.the_one().process == OLD
    fleet.shows(NEW)
    await fleet.look(3)
    assert len(fleet.probe.asked) == 2
    instance = fleet.the_one()
    assert instance.process == NEW
    assert instance.supports(Capability.SINGLE_PROCESS) is Support.UNKNOWN


async def test_what_was_measured_before_a_restart_is_not_of_the_new_process(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=ONE))
    fleet.shows(OLD)
    await fleet.look(3)
    before = fleet.clock.now
    fleet.shows(NEW)
    await fleet.look(3)
    assert fleet.the_one().process_since == before


async def test_a_restart_that_happened_while_nobody_looked_is_noticed(fleet: Fleet, store: Store) -> None:
    await fleet.registry.add(declared(name="a", url=ONE))
    fleet.shows(OLD)
    await fleet.look()
    fleet.clock.advance(30)
    after = Fleet(store, fleet.clock)
    await after.registry.sync_once()
    after.shows(NEW)
    before = after.clock.now
    await after.look()
    assert (after.the_one().process, after.the_one().process_since) == (NEW, before)


async def test_a_server_that_was_away_and_does_not_say_its_start_is_taken_for_another(
    fleet: Fleet,
) -> None:
    await fleet.registry.add(declared(name="a", url=ONE))
    fleet.health.answer = REFUSED
    await fleet.look()
    fleet.health.answer = ALIVE
    before = fleet.clock.now
    await fleet.look()
    assert fleet.the_one().process_since == before


async def test_a_server_that_was_away_and_is_the_same_process_keeps_what_was_measured(fleet: Fleet) -> None:
    added_at = fleet.clock.now
    await fleet.registry.add(declared(name="a", url=ONE))
    fleet.shows(OLD)
    await fleet.look()
    fleet.health.answer = REFUSED
    await fleet.look()
    fleet.shows(OLD)
    await fleet.look()
    assert fleet.the_one().state is BackendState.UP
    assert fleet.the_one().process_since == added_at


async def flagged(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="a", url=ONE))
    for process in (OLD, NEW, OLD):
        fleet.shows(process)
        await fleet.look()


async def test_a_url_that_answers_as_several_processes_is_flagged_and_says_so(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await flagged(fleet)
    finding = fleet.the_one().findings[Capability.SINGLE_PROCESS]
    assert finding.support is Support.NO
    assert finding.evidence == (
        "the URL answers as one process (started at 1970-01-01T00:33:20.000+00:00) "
        "and another (started at 1970-01-01T00:16:40.000+00:00) in turns"
    )
    (warning,) = fleet.registry.get("a").warnings()
    assert "gateway_loop is off there" in warning
    fleet.shows(NEW)
    await fleet.look()
    assert [r.getMessage() for r in caplog.records].count(f"backend a: {finding.evidence}") == 1


async def test_while_it_flips_a_flagged_url_is_not_probed_again_and_again(fleet: Fleet) -> None:
    await flagged(fleet)
    probed = len(fleet.probe.asked)
    for process in (NEW, OLD) * 4:
        fleet.shows(process)
        await fleet.look()
    assert len(fleet.probe.asked) == probed


async def test_the_flag_goes_after_enough_looks_that_show_one_process(fleet: Fleet) -> None:
    await flagged(fleet)
    probed = len(fleet.probe.asked)
    await fleet.look(CONSISTENT_LOOKS)
    instance = fleet.the_one()
    assert instance.supports(Capability.SINGLE_PROCESS) is Support.YES
    assert (instance.process, len(fleet.probe.asked)) == (OLD, probed + 1)


async def test_a_probe_does_not_undo_the_flag(fleet: Fleet) -> None:
    await flagged(fleet)
    await fleet.registry.reprobe("a")
    assert fleet.the_one().supports(Capability.SINGLE_PROCESS) is Support.NO


async def test_another_process_of_the_gateway_goes_on_with_the_flag(fleet: Fleet, store: Store) -> None:
    await flagged(fleet)
    after = Fleet(store, fleet.clock)
    await after.registry.sync_once()
    after.shows(OLD)
    fleet.clock.advance(20)
    await after.look(3)
    assert after.the_one().supports(Capability.SINGLE_PROCESS) is Support.NO


async def test_instances_are_judged_one_by_one(pair: Fleet) -> None:
    for process in (OLD, NEW, OLD):
        pair.health.answers[ONE] = Health(
            alive=True, models=frozenset({"m"}), sighting=Sighting(process=process)
        )
        await pair.look()
    one, two = pair.registry.get("a").instances
    assert one.supports(Capability.SINGLE_PROCESS) is Support.NO
    assert two.supports(Capability.SINGLE_PROCESS) is Support.UNKNOWN


async def test_a_server_that_was_away_and_shows_the_same_created_may_be_another(fleet: Fleet) -> None:
    """Some servers give every model one constant."""
    await fleet.registry.add(declared(name="a", url=ONE))
    shown = replace(ALIVE, sighting=Sighting(created=1686935002.0))
    fleet.health.answer = shown
    await fleet.look(3)
    fleet.health.answer = REFUSED
    await fleet.look()
    fleet.health.answer = shown
    before = fleet.clock.now
    await fleet.look()
    assert fleet.the_one().process_since == before


async def test_one_name_that_hangs_holds_up_no_other_backend(fleet: Fleet) -> None:
    await fleet.registry.add(declared(name="b", url=ONE))
    await named(fleet, "10.0.0.2")
    resolved = asyncio.Event()
    fleet.wait_for = resolved
    looking = asyncio.create_task(fleet.registry.check_health_once())
    fleet.health.asked.clear()
    await until(lambda: [url for url, _ in fleet.health.asked] == [ONE])
    resolved.set()
    await looking
    assert [url for url, _ in fleet.health.asked] == [ONE, NAME]
