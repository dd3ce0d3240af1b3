"""What decisions look at besides findings, as scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gateway.errors import CalibrationFailed
from gateway.evidence.calibrations import Calibrations
from gateway.evidence.loop_costs import Calibration, CostKey
from gateway.evidence.standings import Standings
from gateway.evidence.worths import Worths
from gateway.fleet.load import Load
from gateway.fleet.model import Backend
from gateway.fleet.registry import Registry
from gateway.fleet.runners import Runners
from gateway.policy.overlays import NO_OVERLAYS, Overlays, Stop, Subject
from gateway.policy.standing import Standing
from gateway.policy.watch import PolicyHolder
from gateway.store.store import Store
from tests.fakes.clock import FakeClock


@dataclass
class ScriptedStandings:
    """Gives one standing, and keeps what was wanted: (backend, model, drafter, running)."""

    standing: Standing = field(default_factory=Standing)
    wanted: list[tuple[str, str, str, int]] = field(default_factory=list)

    def at(self, backend: Backend, model: str, running: int) -> Standing:
        return replace(self.standing, running=running)

    def want_calibration(self, backend: Backend, model: str, drafter: str, running: int) -> None:
        self.wanted.append((backend.name, model, drafter, running))


def costs(key: CostKey, at: float, *, plain: float = 0.070, step: float = 0.075) -> Calibration:
    """A calibration in which every step takes the same, drafting and its way 2 ms of it."""
    return Calibration(
        key=key,
        measured_at=at,
        expires_at=at + 3600.0,
        context_tokens=200,
        plain_seconds=plain,
        verify_seconds={0: step - 0.002, 8: step - 0.002},
        draft_seconds={0: 0.002, 8: 0.002},
    )


@dataclass
class ScriptedMeter:
    """Measures at once, and keeps what it was asked for. Fails with `failure` while there is one.

    Attributes:
        hangs: Never comes to an end.
        killed: Backends of which a kill speaks.
    """

    clock: FakeClock
    failure: str = ""
    asked: list[CostKey] = field(default_factory=list)
    hangs: bool = False
    killed: set[str] = field(default_factory=set)

    def stop(self, subject: Subject) -> Stop | None:
        return Stop("killed", "by a test") if subject.backend in self.killed else None

    async def measure(self, backend: Backend, keys: Sequence[CostKey]) -> list[Calibration]:
        self.asked += keys
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure:
            raise CalibrationFailed(backend.name, self.failure)
        return [costs(key, self.clock()) for key in keys]


def calibrations_of(
    store: Store, registry: Registry, runners: Runners, load: Load, clock: FakeClock
) -> tuple[Calibrations, ScriptedMeter]:
    """Calibrations in a real store, measured by a script."""
    meter = ScriptedMeter(clock)
    calibrations = Calibrations(
        store=store,
        meter=meter,
        registry=registry,
        runners=runners.live,
        load=load,
        stop=meter.stop,
        clock=clock,
    )
    return calibrations, meter


def standings_of(
    store: Store,
    runners: Runners,
    policy: PolicyHolder,
    load: Load,
    calibrations: Calibrations,
    clock: FakeClock,
    overlays: Callable[[], Overlays] = lambda: NO_OVERLAYS,
) -> Standings:
    """Standings over a real store."""
    worths = Worths(
        stages=store.stages, policy=policy, overlays=overlays, costs=calibrations.known, clock=clock
    )
    return Standings(
        load=load,
        runners=runners.live,
        calibrations=calibrations,
        worths=worths,
        policy=policy,
        pairing=lambda *_: None,
        overlays=overlays,
    )
