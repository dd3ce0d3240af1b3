"""The calibrations in force, and the task that makes those that requests lacked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gateway.errors import CalibrationFailed, Conflict, GatewayError, StoreError
from gateway.evidence.loop_costs import Calibration, CostKey, costs_in_words, load_band
from gateway.fleet.executors import ExecutorVerdict, executors_of
from gateway.fleet.load import Load
from gateway.fleet.model import Backend, Registered
from gateway.fleet.registry import Registry
from gateway.loop.executor import NAME as GATEWAY_LOOP
from gateway.policy.overlays import Stop, Subject
from gateway.policy.ways import ways_of
from gateway.store.store import Store

COOL_DOWN_S = 600.0
"""After a measurement that nobody asked for by hand, the same is not measured again for so long."""

logger = logging.getLogger(__name__)


class Meter(Protocol):
    """Times the steps of a loop. CostMeter is one."""

    async def measure(self, backend: Backend, keys: Sequence[CostKey]) -> Sequence[Calibration]:
        """Time everything while the load is that of the keys, which differ in their drafter only.

        Raises:
            CalibrationFailed: It could not be timed.
        """
        ...


class Drafting(Protocol):
    """A draft runner that has joined lately."""

    @property
    def drafters(self) -> Iterable[str]:
        """What it can draft with."""
        ...


class Calibrations:
    """What a step of the loop costs, shared through the store by every process of the gateway.

    Args:
        store: Where calibrations are kept.
        meter: Measures.
        registry: The backends.
        runners: The draft runners that have joined lately.
        load: Requests under way.
        stop: What stops speculation now; then nothing is measured but what an operator asks for by hand.
        clock: Unix time.
    """

    def __init__(
        self,
        *,
        store: Store,
        meter: Meter,
        registry: Registry,
        runners: Callable[[], Iterable[Drafting]],
        load: Load,
        stop: Callable[[Subject], Stop | None],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._meter = meter
        self._registry = registry
        self._runners = runners
        self._load = load
        self._stop = stop
        self._clock = clock
        self._known: Mapping[CostKey, Calibration] = {}
        self._wanted: dict[CostKey, None] = {}
        self._tried_at: dict[CostKey, float] = {}
        self._arrived = asyncio.Event()
        self._under_way: tuple[CostKey, asyncio.Task[None]] | None = None
        # What is known and the store change together, or a slow reader would bring back what has gone.
        self._exchange = asyncio.Lock()
        # Two at once would each measure the other.
        self._measuring = asyncio.Lock()

    def known(self) -> Mapping[CostKey, Calibration]:
        """The latest of each key, expired ones among them. Replaced whole, never changed."""
        return self._known

    def of(self, backend: str) -> tuple[Calibration, ...]:
        """Those of one backend that count now: not too old, and of the server processes that run now."""
        now = self._clock()
        since = {instance.key: instance.process_since for instance in self._registry.snapshot().backends}
        return tuple(
            found
            for key, found in self._known.items()
            if key.backend == backend
            and since.get(key.place, 0.0) <= found.measured_at
            and now < found.expires_at
        )

    def want(self, backend: Backend, model: str, drafter: str, running: int) -> None:
        """A request was bypassed for want of a calibration at this load. Measured when there is time."""
        way = next((way for way in ways_of(GATEWAY_LOOP) if way.missing(backend) is None), None)
        if way is None or way.strategy is None:
            return
        key = CostKey(
            backend=backend.name,
            model=model,
            strategy=way.strategy,
            drafter=drafter,
            band=load_band(running),
            instance=backend.instance,
        )
        tried_at = self._tried_at.get(key, -COOL_DOWN_S)
        if self._clock() >= tried_at + COOL_DOWN_S or tried_at < backend.process_since:
            self._wanted[key] = None
            self._arrived.set()

    async def calibrate(self, name: str) -> Registered:
        """Measure a backend now, each instance at the load that it has.

        That is every model of its with every drafter announced.

        Raises:
            NotFound: None has that name.
            Conflict: The loop cannot drive it, or there is no draft runner.
            CalibrationFailed: It could not be measured.
        """
        registered = self._registry.get(name)
        fit = [instance for instance in registered.instances if _loop_on(instance).possible]
        if not fit:
            sentence = _loop_on(registered.whole).sentence
            raise Conflict(f"There is nothing to calibrate on {name!r}: {sentence}")
        drafters = sorted({drafter for runner in self._runners() for drafter in runner.drafters})
        if not drafters:
            raise Conflict("No draft runner has joined. Start one with `ace draft-runner`, then try again.")
        for instance in fit:
            await self._calibrate(instance, drafters)
        return registered

    async def _calibrate(self, instance: Backend, drafters: Sequence[str]) -> None:
        way = next(way for way in ways_of(GATEWAY_LOOP) if way.missing(instance) is None)
        band = load_band(self._load.running(instance.key) + 1)
        for model in instance.models:
            keys = [
                CostKey(
                    backend=instance.name,
                    model=model,
                    strategy=way.strategy or "",
                    drafter=drafter,
                    band=band,
                    instance=instance.instance,
                )
                for drafter in drafters
            ]
            await self._measure(instance, keys)

    async def measure_wanted_once(self) -> None:
        """Measure what is wanted. What fails is logged, and not tried again before the cool-down is over."""
        self._arrived.clear()
        wanted, self._wanted = self._wanted, {}
        for key in wanted:
            if self._is_stopped(key):
                continue
            self._tried_at[key] = self._clock()
            try:
                await self._measure_unless_stopped(key)
            except GatewayError as error:
                logger.warning("Requests go on without gateway_loop: %s", error)

    def check(self) -> None:
        """Break off what may be measured no longer, since overlays have changed."""
        if self._under_way and self._is_stopped(self._under_way[0]):
            self._under_way[1].cancel()

    async def sync_once(self) -> None:
        """Take over what other processes have measured. While the store is down, what is known stays."""
        try:
            async with self._exchange:
                self._known = {found.key: found for found in await self._store.calibrations.all()}
        except StoreError as error:
            logger.debug("calibrations are kept as they are: %s", error)

    async def run(self, interval_s: float = 1.0) -> None:
        """Sync again and again, until cancelled."""
        while True:
            await self.sync_once()
            await asyncio.sleep(interval_s)

    async def run_meter(self) -> None:
        """Measure what is wanted, until cancelled."""
        while True:
            await self._arrived.wait()
            await self.measure_wanted_once()

    def _is_stopped(self, key: CostKey) -> bool:
        """Whether a kill speaks of the backend or the model, or of everything."""
        return self._stop(Subject(tenant="", model=key.model, backend=key.backend, rule="")) is not None

    async def _measure_unless_stopped(self, key: CostKey) -> None:
        measuring = asyncio.create_task(self._measure(self._registry.instance(key.place), [key]))
        self._under_way = key, measuring
        try:
            await measuring
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) and current.cancelling():
                raise
            del self._tried_at[key]  # it is wanted again once the kill is lifted
            logger.warning("The calibration of backend %s was broken off by a kill.", key.backend)
        finally:
            self._under_way = None

    async def _measure(self, backend: Backend, keys: Sequence[CostKey]) -> None:
        async with self._measuring:
            found = await self._meter.measure(backend, keys)
        for calibration in found:
            await self._keep(calibration)

    async def _keep(self, calibration: Calibration) -> None:
        key = calibration.key
        try:
            async with self._exchange:
                await self._store.calibrations.keep(calibration)
                self._known = {**self._known, key: calibration}
        except StoreError as error:
            why = f"what was measured cannot be kept ({str(error).rstrip('.')})"
            raise CalibrationFailed(key.backend, why) from error
        costs = costs_in_words(calibration)
        logger.info("calibrated backend %s, model %s: %s", key.place, key.model, costs)


def _loop_on(instance: Backend) -> ExecutorVerdict:
    return next(found for found in executors_of(instance) if found.name == GATEWAY_LOOP)
