"""Calibrations: kept, shared, measured when a request lacked one, and not again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.errors import CalibrationFailed, Conflict, NotFound, StoreError
from gateway.evidence.calibrations import COOL_DOWN_S, Calibrations
from gateway.evidence.loop_costs import CostKey
from gateway.fleet.load import Load
from gateway.fleet.model import Backend, BackendState
from gateway.fleet.registry import Registry
from gateway.fleet.runners import Runners
from gateway.policy.ways import WAYS
from gateway.store.store import Store
from probes.model import Capability, Finding, Support
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import registered
from tests.fakes.probing import ScriptedHealth, ScriptedProbe, examiner_of
from tests.fakes.standings import ScriptedMeter, calibrations_of
from tests.fakes.stores import opened_store
from tests.fakes.waiting import until

KEY = CostKey(backend="gpu-1", model="m", strategy="fanout", drafter="ngram", band="1")
NEEDS = {way.strategy: way.needs for way in WAYS}


def backend(*capabilities: Capability) -> Backend:
    findings = {
        capability: Finding(capability=capability, support=Support.YES, evidence="asked")
        for capability in capabilities
    }
    return Backend(
        name="gpu-1",
        url="http://127.0.0.1:1",
        state=BackendState.UP,
        models=("m", "n"),
        findings=findings,
        probed_at=1.0,
    )


PLAIN = backend(*NEEDS["fanout"])


@dataclass
class Parts:
    """Calibrations over a real store, and what they depend on."""

    calibrations: Calibrations
    meter: ScriptedMeter
    store: Store
    registry: Registry
    runners: Runners
    load: Load
    clock: FakeClock

    async def register(self, backend: Backend) -> None:
        await self.store.backends.add(registered(backend))
        await self.registry.sync_once()

    async def join(self, *drafters: str) -> None:
        await self.runners.join(url="http://127.0.0.1:2", node="n", drafters=drafters, version="1")


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with opened_store(tmp_path) as store:
        clock, load = FakeClock(), Load()
        examiner = examiner_of(ScriptedProbe(), ScriptedHealth(), clock)
        registry = Registry(store=store, examiner=examiner, clock=clock, owner="test")
        runners = Runners(store=store, clock=clock)
        calibrations, meter = calibrations_of(store, registry, runners, load, clock)
        yield Parts(calibrations, meter, store, registry, runners, load, clock)


async def test_what_a_request_lacked_is_measured_once(parts: Parts) -> None:
    await parts.register(PLAIN)
    for _ in range(3):
        parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert parts.meter.asked == [KEY]
    assert list(parts.calibrations.known()) == [KEY]


async def test_what_a_kill_speaks_of_is_not_measured_until_it_is_lifted(parts: Parts) -> None:
    await parts.register(PLAIN)
    parts.meter.killed.add("gpu-1")
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert parts.meter.asked == []
    parts.meter.killed.clear()
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert parts.meter.asked == [KEY]


async def test_a_kill_breaks_off_what_is_being_measured(parts: Parts) -> None:
    await parts.register(PLAIN)
    parts.meter.hangs = True
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    measuring = asyncio.create_task(parts.calibrations.measure_wanted_once())
    await until(lambda: bool(parts.meter.asked))
    parts.meter.killed.add("other")
    parts.calibrations.check()
    await asyncio.sleep(0)
    assert not measuring.done()
    parts.meter.killed.add("gpu-1")
    parts.calibrations.check()
    await measuring
    assert parts.calibrations.known() == {}
    parts.meter.killed.clear()
    parts.meter.hangs = False
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert list(parts.calibrations.known()) == [KEY], "without a cool-down, since nothing had failed"


async def test_every_load_band_is_measured_by_itself(parts: Parts) -> None:
    await parts.register(PLAIN)
    for running in (1, 2, 3, 40):
        parts.calibrations.want(PLAIN, "m", "ngram", running)
    await parts.calibrations.measure_wanted_once()
    assert [key.band for key in parts.meter.asked] == ["1", "2-4", "17+"]


async def test_the_best_strategy_that_the_server_allows_is_measured(parts: Parts) -> None:
    scoring = backend(*NEEDS["fanout"], *NEEDS["scored"])
    await parts.register(scoring)
    parts.calibrations.want(scoring, "m", "suffix", 1)
    parts.calibrations.want(backend(), "m", "suffix", 1)
    await parts.calibrations.measure_wanted_once()
    assert parts.meter.asked == [replace(KEY, strategy="scored", drafter="suffix")]


async def test_what_failed_is_logged_and_tried_again_after_a_cool_down(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    await parts.register(PLAIN)
    parts.meter.failure = "the runner was lost"
    for wait in (0.0, COOL_DOWN_S - 1, 1.0):
        parts.clock.advance(wait)
        parts.calibrations.want(PLAIN, "m", "ngram", 1)
        await parts.calibrations.measure_wanted_once()
    assert len(parts.meter.asked) == 2
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "could not be calibrated: the runner was lost" in warnings[0]


async def test_a_backend_that_has_gone_meanwhile_is_not_measured(parts: Parts) -> None:
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert parts.meter.asked == []


async def test_other_processes_learn_of_it_through_the_store(parts: Parts) -> None:
    await parts.register(PLAIN)
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    other, _ = calibrations_of(parts.store, parts.registry, parts.runners, parts.load, parts.clock)
    assert other.known() == {}
    await other.sync_once()
    assert other.known() == parts.calibrations.known()


async def test_an_expired_one_does_not_count(parts: Parts) -> None:
    await parts.register(PLAIN)
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert [found.key for found in parts.calibrations.of("gpu-1")] == [KEY]
    assert parts.calibrations.of("gpu-2") == ()
    parts.clock.advance(3600)
    assert parts.calibrations.of("gpu-1") == ()


async def test_by_hand_every_model_is_measured_with_every_drafter_at_the_load_of_now(parts: Parts) -> None:
    await parts.register(PLAIN)
    await parts.join("suffix", "ngram")
    for _ in range(4):
        parts.load.place().move("gpu-1")
    assert await parts.calibrations.calibrate("gpu-1") == registered(PLAIN)
    assert [(key.model, key.drafter, key.band) for key in parts.meter.asked] == [
        ("m", "ngram", "5-16"),
        ("m", "suffix", "5-16"),
        ("n", "ngram", "5-16"),
        ("n", "suffix", "5-16"),
    ]


async def test_by_hand_the_cool_down_does_not_matter(parts: Parts) -> None:
    await parts.register(PLAIN)
    await parts.join("ngram")
    for _ in range(2):
        await parts.calibrations.calibrate("gpu-1")
    assert len(parts.meter.asked) == 4


async def test_what_cannot_be_calibrated_says_why(parts: Parts) -> None:
    with pytest.raises(NotFound, match="gpu-1"):
        await parts.calibrations.calibrate("gpu-1")
    await parts.register(backend(*NEEDS["fanout"][1:]))
    with pytest.raises(Conflict, match="the finding streaming is unknown"):
        await parts.calibrations.calibrate("gpu-1")


async def test_without_a_draft_runner_there_is_nothing_to_time(parts: Parts) -> None:
    await parts.register(PLAIN)
    with pytest.raises(Conflict, match="ace draft-runner"):
        await parts.calibrations.calibrate("gpu-1")


async def test_while_the_store_is_down_what_is_known_stays_and_nothing_new_is_promised(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parts.register(PLAIN)
    await parts.join("ngram")
    await parts.calibrations.calibrate("gpu-1")
    before = parts.calibrations.known()

    async def down(*_: object) -> None:
        raise StoreError("sqlite", "the disk is full")

    monkeypatch.setattr(parts.store.calibrations, "all", down)
    monkeypatch.setattr(parts.store.calibrations, "keep", down)
    await parts.calibrations.sync_once()
    with pytest.raises(CalibrationFailed, match="cannot be kept"):
        await parts.calibrations.calibrate("gpu-1")
    assert parts.calibrations.known() == before


async def test_what_was_measured_on_the_process_before_does_not_count_and_is_measured_again(
    parts: Parts,
) -> None:
    await parts.register(PLAIN)
    parts.calibrations.want(PLAIN, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert [found.key for found in parts.calibrations.of("gpu-1")] == [KEY]
    parts.clock.advance(10)
    restarted = replace(PLAIN, process_since=parts.clock())
    await parts.store.backends.save(restarted)
    await parts.registry.sync_once()
    assert parts.calibrations.of("gpu-1") == ()
    parts.calibrations.want(restarted, "m", "ngram", 1)
    await parts.calibrations.measure_wanted_once()
    assert parts.meter.asked == [KEY, KEY]
    assert len(parts.calibrations.of("gpu-1")) == 1


async def test_by_hand_each_instance_that_is_up_is_measured_at_its_own_load(parts: Parts) -> None:
    places = ("http://10.0.0.1", "http://10.0.0.2", "http://10.0.0.3")
    one, two, down = (replace(PLAIN, url=url, instance=url, models=("m",)) for url in places)
    await parts.store.backends.add(registered(one, two, replace(down, state=BackendState.DOWN)))
    await parts.registry.sync_once()
    await parts.join("ngram")
    parts.load.place().move(two.key)
    await parts.calibrations.calibrate("gpu-1")
    assert [(key.instance, key.band) for key in parts.meter.asked] == [(places[0], "1"), (places[1], "2-4")]
    assert len(parts.calibrations.of("gpu-1")) == 2
