"""create_app(settings): the one place where objects are made and joined."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx

from gateway.background import keep_running
from gateway.control.app import create_control_app
from gateway.errors import StoreError
from gateway.evidence.calibration import CostMeter
from gateway.evidence.calibrations import Calibrations
from gateway.evidence.multiplier import MultiplierBook
from gateway.evidence.standings import Standings
from gateway.evidence.worths import Worths
from gateway.fleet.examine import Examiner
from gateway.fleet.health import HttpHealthCheck, checked_session
from gateway.fleet.load import Load
from gateway.fleet.pairing import Pairings
from gateway.fleet.registry import Registry
from gateway.fleet.runners import Runners
from gateway.fleet.transport import CheckedTransport
from gateway.fleet.urls import CheckedResolver
from gateway.keys import KeyRing, RunnerGate, open_runner_token
from gateway.loop.executor import LoopExecutor
from gateway.loop.runner import LoopRunners
from gateway.policy.board import OverlayBoard
from gateway.policy.kill_switch import KillSwitch
from gateway.policy.stored import FileHistory, StoredPolicy
from gateway.policy.watch import PolicyHolder
from gateway.proxy.asgi import Receive, Scope, Send
from gateway.proxy.handler import DataPlane, Limits
from gateway.proxy.retry_budget import RetryBudget
from gateway.proxy.speculations import Speculations
from gateway.proxy.upstream import BackendPool, Timeouts
from gateway.settings import Settings
from gateway.shadow.feed import ShadowFeed, ShadowLimits
from gateway.shadow.runner import TIMEOUT as RUNNER_TIMEOUT
from gateway.shadow.runner import RunnerClient
from gateway.shadow.tokenize import Tokenizers
from gateway.store.retention import Retention
from gateway.store.store import Store
from gateway.store.writer import StageWriter
from gateway.telemetry.logs import ACCESS_LOGGER, STAGE_LOGGER, ProcessLogs, RecordLog
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sink import Telemetry
from gateway.telemetry.spans import spans_from_env
from probes.suite import probe

logger = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY_POLL_S = 0.5
_STORE_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Planes:
    data: App
    control: App


def create_app(settings: Settings) -> App:
    """The gateway as an ASGI application, whose parts are made and closed by its lifespan."""
    return _Gateway(settings)


class _Gateway:
    """Sends `/v1/...` to the data plane and the rest to the control plane."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._planes: _Planes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._planes is None:
            raise RuntimeError("the gateway needs a server that speaks ASGI's lifespan protocol")
        elif scope["path"] == "/v1" or scope["path"].startswith("/v1/"):
            await self._planes.data(scope, receive, send)
        else:
            await self._planes.control(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with _opened(self._settings) as self._planes:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            # Before startup.complete the server prints the message and exits; after it, only the log can say.
            logger.exception("the gateway's parts could not be opened or closed")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[_Planes]:
    """Every part of one gateway process, running."""
    async with AsyncExitStack() as closing:
        store = Store(settings.database_url)
        closing.push_async_callback(store.close)
        policy: PolicyHolder | StoredPolicy
        if settings.policy_source == "store":
            policy = StoredPolicy(store=store, clock=time.time)
        else:
            policy = PolicyHolder(settings.policy_path, time.time)
        history = FileHistory(store=store, current=lambda: policy.current)
        switch = KillSwitch(settings.kill_path, settings.kill, time.time)
        overlays = OverlayBoard(store=store, switch=switch, clock=time.time)
        resolver = aiohttp.ThreadedResolver()

        health_session = await closing.enter_async_context(checked_session(resolver))
        registry = Registry(
            store=store,
            examiner=Examiner(
                probe=probe,
                check_health=HttpHealthCheck(health_session),
                transport=lambda: CheckedTransport(resolver),
                clock=time.time,
            ),
            clock=time.time,
            owner=secrets.token_hex(8),
        )
        keys = KeyRing(store=store, clock=time.time, anonymous_allowed=settings.loopback)
        runners = Runners(store=store, clock=time.time)
        runner_token = open_runner_token(settings.runner_token, settings.runner_token_file)

        counters = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        metrics = Metrics(
            fleet=registry.snapshot,
            policy=policy,
            kills=lambda: len(overlays.current.kills(time.time())),
            multiprocess_dir=Path(counters) if counters else None,
        )
        closing.enter_context(
            ProcessLogs(
                out=sys.stdout, err=sys.stderr, dropped=lambda lines: metrics.dropped("log_lines", lines)
            )
        )
        writer = StageWriter(stages=store.stages, on_drop=lambda rows: metrics.dropped("store", rows))
        closing.push_async_callback(writer.close)
        spans = spans_from_env(os.environ, lambda spans: metrics.dropped("spans", spans))
        closing.callback(spans.close)
        telemetry = Telemetry(
            metrics=metrics,
            spans=spans,
            stage_log=RecordLog(STAGE_LOGGER),
            access_log=RecordLog(ACCESS_LOGGER),
            store_writer=writer,
        )

        pool = BackendPool(
            timeouts=Timeouts(
                connect_s=settings.connect_timeout_s,
                first_byte_s=settings.first_byte_timeout_s,
                idle_s=settings.idle_timeout_s,
            ),
            resolver=CheckedResolver(resolver),
        )
        closing.push_async_callback(pool.close)
        to_runners = await closing.enter_async_context(
            httpx.AsyncClient(transport=CheckedTransport(resolver), timeout=RUNNER_TIMEOUT, trust_env=False)
        )
        loop_session = await closing.enter_async_context(checked_session(resolver))
        tokenize = Tokenizers(pool)
        pairings = Pairings(
            pool=pool,
            client=to_runners,
            token=runner_token,
            fleet=registry.snapshot,
            runners=runners.live,
            clock=time.monotonic,
        )
        feed = ShadowFeed(
            telemetry=telemetry,
            tokenize=tokenize,
            runner=RunnerClient(
                client=to_runners, runners=runners.live, token=runner_token, clock=time.monotonic
            ),
            pairing=pairings.settled,
            stop=overlays.stop,
            limits=ShadowLimits(max_answers=settings.shadow_queue),
            clock=time.monotonic,
        )
        load = Load()
        loop_runners = LoopRunners(session=loop_session, runners=runners.live, token=runner_token)
        calibrations = Calibrations(
            store=store,
            meter=CostMeter(
                pool=pool,
                tokenize=tokenize,
                runners=loop_runners,
                load=load,
                now=time.time,
                timer=time.perf_counter,
            ),
            registry=registry,
            runners=runners.live,
            load=load,
            stop=overlays.stop,
            clock=time.time,
        )
        worths = Worths(
            stages=store.stages,
            policy=policy,
            overlays=lambda: overlays.current,
            costs=calibrations.known,
            clock=time.time,
        )
        standings = Standings(
            load=load,
            runners=runners.live,
            calibrations=calibrations,
            worths=worths,
            policy=policy,
            pairing=pairings.of_live,
            overlays=lambda: overlays.current,
        )
        speculations = Speculations(stop=overlays.stop, pool=pool)
        overlays.on_change(speculations.check)
        overlays.on_change(feed.check)
        overlays.on_change(calibrations.check)
        loop = LoopExecutor(
            pool=pool,
            tokenize=tokenize,
            runners=loop_runners,
            plain_seconds=standings.plain_seconds,
            now=time.time,
            timer=time.perf_counter,
        )
        data = DataPlane(
            policy=policy,
            fleet=registry.snapshot,
            identify=keys.identify,
            pool=pool,
            loop=loop,
            telemetry=telemetry,
            feed=feed,
            book=MultiplierBook(),
            load=load,
            standings=standings,
            speculations=speculations,
            report_unreachable=registry.report_unreachable,
            limits=Limits(body_bytes=settings.max_body_bytes),
            retries=RetryBudget(),
        )
        control = create_control_app(
            store=store,
            registry=registry,
            runners=runners,
            keys=keys,
            runner_gate=RunnerGate(runner_token),
            policy=policy,
            overlays=overlays,
            calibrations=calibrations,
            standings=standings,
            metrics=metrics.exposition,
            clock=time.time,
        )
        retention = Retention(
            stages=store.stages,
            days=settings.retention_days,
            rows=settings.retention_rows,
            clock=time.time,
        )

        await _first_look(store, keys, registry, runners, overlays)
        if isinstance(policy, StoredPolicy):
            await policy.sync_once()
        await closing.enter_async_context(
            keep_running(
                {
                    "migration": lambda: _migrate(store),
                    "keys": keys.run,
                    "registry": registry.run,
                    "runners": runners.run,
                    "calibrations": calibrations.run,
                    "calibration": calibrations.run_meter,
                    "predictions": worths.run,
                    "policy": lambda: policy.run(_POLICY_POLL_S),
                    "policy history": lambda: history.run(_POLICY_POLL_S),
                    "store writer": writer.run,
                    "retention": retention.run,
                    "shadow": feed.run,
                    "pairings": pairings.run,
                    "overlays": overlays.run,
                    "speculations": speculations.run,
                }
            )
        )
        yield _Planes(data=data, control=control)


async def _first_look(
    store: Store, keys: KeyRing, registry: Registry, runners: Runners, overlays: OverlayBoard
) -> None:
    """What the store knows, before the first request. A store that is down now is read when it is back."""
    try:
        await store.migrate()
    except StoreError as error:
        logger.warning("Starting without the store, which is tried again: %s", error)
    await asyncio.gather(keys.sync_once(), registry.sync_once(), runners.sync_once(), overlays.sync_once())


async def _migrate(store: Store) -> None:
    """Migrate as soon as the store can be used."""
    while not store.migrated:
        try:
            await store.migrate()
        except StoreError:
            await asyncio.sleep(_STORE_RETRY_S)
