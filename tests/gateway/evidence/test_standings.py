"""One value for a decision, of everything that is known beside findings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.evidence.calibrations import Calibrations
from gateway.evidence.loop_costs import CostKey
from gateway.evidence.standings import Standings
from gateway.evidence.worths import Worths
from gateway.fleet.load import Load
from gateway.fleet.model import Backend
from gateway.fleet.registry import Registry
from gateway.fleet.runners import LIVE_S, Runners
from gateway.policy.load import LoadedPolicy
from gateway.policy.model import Policy
from gateway.policy.overlays import Overlays
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.probing import ScriptedHealth, ScriptedProbe, examiner_of
from tests.fakes.standings import calibrations_of, costs
from tests.fakes.stores import opened_store

HERE = Backend(name="b", url="http://b")
KEY = CostKey(backend="b", model="m", strategy="scored", drafter="ngram", band="1")


OVERLAYS = Overlays(read=False)


@dataclass(frozen=True)
class Compared:
    agrees: bool | None
    sentence: str


AGREES = Compared(True, "all ids agree")


class Holder:
    def __init__(self) -> None:
        self.hold()

    def hold(self, **rule: Any) -> None:
        policy = Policy.model_validate({"version": 1, "rules": [{"name": "r", **rule}]})
        self.current = LoadedPolicy(policy=policy, revision="1", source="test", loaded_at=0.0)


@dataclass
class Parts:
    standings: Standings
    store: Store
    calibrations: Calibrations
    runners: Runners
    load: Load
    holder: Holder
    clock: FakeClock


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with opened_store(tmp_path) as store:
        clock, load, holder = FakeClock(), Load(), Holder()
        examiner = examiner_of(ScriptedProbe(), ScriptedHealth(), clock)
        registry = Registry(store=store, examiner=examiner, clock=clock, owner="test")
        runners = Runners(store=store, clock=clock)
        calibrations, _ = calibrations_of(store, registry, runners, load, clock)
        standings = Standings(
            load=load,
            runners=runners.live,
            calibrations=calibrations,
            worths=Worths(
                stages=store.stages,
                policy=holder,
                overlays=lambda: OVERLAYS,
                costs=calibrations.known,
                clock=clock,
            ),
            policy=holder,
            pairing=lambda backend, model: AGREES,
            overlays=lambda: OVERLAYS,
        )
        yield Parts(standings, store, calibrations, runners, load, holder, clock)


async def test_the_drafters_are_those_of_live_runners(parts: Parts) -> None:
    for port, drafter in ((1, "ngram"), (2, "suffix")):
        url = f"http://127.0.0.1:{port}"
        await parts.runners.join(url=url, node="n", drafters=[drafter], version="1")
        parts.clock.advance(LIVE_S - 1)
    assert parts.standings.at(HERE, "m", 1).drafters == {"suffix"}


async def test_overlays_are_part_of_what_is_known(parts: Parts) -> None:
    assert parts.standings.at(HERE, "m", 1).overlays is OVERLAYS


async def test_a_request_to_come_counts_itself(parts: Parts) -> None:
    parts.load.place().move("b")
    assert parts.standings.of_next(HERE, "m").running == 2
    assert parts.standings.of_next(replace(HERE, name="other"), "m").running == 1


async def test_the_plain_speed_is_that_of_the_load_of_now(parts: Parts) -> None:
    parts.load.place().move("b")
    assert parts.standings.plain_seconds(HERE, "m") is None
    await parts.store.calibrations.keep(costs(KEY, parts.clock(), plain=0.05))
    await parts.calibrations.sync_once()
    assert parts.standings.plain_seconds(HERE, "m") == 0.05
    assert parts.standings.plain_seconds(HERE, "other") is None
    parts.load.place().move("b")
    assert parts.standings.plain_seconds(HERE, "m") is None


async def test_each_instance_has_a_load_and_a_plain_speed_of_its_own(parts: Parts) -> None:
    one, two = (replace(HERE, instance=address) for address in ("10.0.0.1", "10.0.0.2"))
    parts.load.place().move(one.key)
    parts.load.place().move(two.key)
    await parts.store.calibrations.keep(costs(replace(KEY, instance=one.instance), parts.clock()))
    await parts.calibrations.sync_once()
    assert parts.standings.plain_seconds(one, "m") == 0.070
    assert parts.standings.plain_seconds(two, "m") is None
    assert parts.standings.of_next(one, "m").running == 2


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        ({"mode": "prod", "experimental": True, "draft": "ngram"}, False),
        ({"mode": "shadow", "draft": "draft_model"}, False),
        ({"mode": "prod", "experimental": True, "draft": "draft_model"}, True),
    ],
)
async def test_tokenizers_are_compared_only_where_a_rule_would_use_it(
    parts: Parts, rule: dict[str, Any], asked: bool
) -> None:
    parts.holder.hold(**rule)
    assert (parts.standings.at(HERE, "m", 1).pairing is AGREES) is asked
