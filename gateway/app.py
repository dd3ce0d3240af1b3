"""create_app(settings): the one place where objects are made and joined."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx

from gateway.background import keep_running
from gateway.control.app import create_control_app, create_operations_app
from gateway.control.installation import Installation
from gateway.control.operation import Readiness, operation_routes
from gateway.drain import Drain
from gateway.errors import StoreError
from gateway.evidence.block_keeper import BlockKeeper
from gateway.evidence.calibration import CostMeter
from gateway.evidence.calibrations import Calibrations
from gateway.evidence.multiplier import MultiplierBook
from gateway.evidence.standings import Standings
from gateway.evidence.worths import Worths
from gateway.fleet.discovery import NameDiscovery
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.examine import Examiner
from gateway.fleet.file import FleetHolder
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
from gateway.operations import serving
from gateway.policy.board import OverlayBoard
from gateway.policy.kill_switch import KillSwitch
from gateway.policy.stored import FileHistory, StoredPolicy
from gateway.policy.watch import PolicyHolder
from gateway.proxy.asgi import App, Receive, Scope, Send
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

_POLICY_POLL_S = 0.5
_STORE_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Planes:
    data: App
    control: App
    operations: App


def create_app(
    settings: Settings, *, drain: Drain | None = None, operations: socket.socket | None = None
) -> App:
    """The gateway as an ASGI application, whose parts are made and closed by its lifespan.

    Args:
        settings: Of the whole gateway.
        drain: How its process comes to an end; None where the server alone decides that.
        operations: Bound to the operations port; None serves those routes beside all others.
    """
    return _Gateway(settings, drain or Drain(), operations)


class _Gateway:
    """Sends `/v1/...` to the data plane and the rest to the control plane."""

    def __init__(self, settings: Settings, drain: Drain, operations: socket.socket | None) -> None:
        self._settings = settings
        self._drain = drain
        self._operations = operations
        self._planes: _Planes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._planes is None:
            raise RuntimeError("the gateway needs a server that speaks ASGI's lifespan protocol")
        elif scope["path"] == "/v1" or scope["path"].startswith("/v1/"):
            await self._planes.data(scope, receive, self._drain.send_of(send))
        else:
            await self._planes.control(scope, receive, self._drain.send_of(send))

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            # Health is asked for until everything else is closed, and cannot be told before it is opened.
            async with AsyncExitStack() as closed_last:
                opened = _opened(self._settings, self._drain, split=self._operations is not None)
                async with opened as self._planes:
                    if self._operations is not None:
                        await closed_last.enter_async_context(
                            serving(self._planes.operations, self._operations)
                        )
                    await send({"type": "lifespan.startup.complete"})
                    await receive()
        except Exception as error:
            # Before startup.complete the server prints the message and exits; after it, only the log can say.
            logger.exception("the gateway's parts could not be opened or closed")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


@asynccontextmanager
async def _opened(settings: Settings, drain: Drain, *, split: bool) -> AsyncIterator[_Planes]:
    """Every part of one gateway process, running; `split`: the control plane has no operation routes."""
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

        owner = secrets.token_hex(8)
        health_session = await closing.enter_async_context(checked_session(resolver))
        registry = Registry(
            store=store,
            examiner=Examiner(
                probe=probe,
                check_health=HttpHealthCheck(health_session),
                discover=NameDiscovery(CheckedResolver(resolver)),
                transport=lambda address: CheckedTransport(resolver, address),
                clock=time.time,
            ),
            clock=time.time,
            owner=owner,
        )
        fleet = FleetHolder(
            settings.fleet_path, declare=registry.declare, refused=registry.refused, clock=time.time
        )
        keys = KeyRing(store=store, clock=time.time, anonymous_allowed=settings.loopback)
        runners = Runners(store=store, clock=time.time)
        runner_token = open_runner_token(settings.runner_token, settings.runner_token_file)

        counters = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        metrics = Metrics(
            fleet=registry.snapshot,
            policy=policy,
            kills=lambda: len(overlays.current.kills(time.time())),
            fleet_file=fleet,
            multiprocess_dir=Path(counters) if counters else None,
        )
        logs = closing.enter_context(
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
            limits=ShadowLimits(max_answers=settings.shadow_queue, workers=settings.workers),
            clock=time.monotonic,
        )
        load = Load()
        block_keeper = BlockKeeper(
            store=store,
            owner=owner,
            on_drop=lambda blocks: metrics.dropped("engine_blocks", blocks),
            clock=time.time,
        )
        engine_watch = EngineWatch(
            session=health_session,
            fleet=registry.snapshot,
            load=load,
            block_lengths=lambda: policy.current.policy.block_lengths,
            keep=block_keeper.put,
            clock=time.time,
        )
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
        readiness = Readiness(
            store=store,
            registry=registry,
            keys=keys,
            policy=policy,
            fleet=fleet,
            overlays=overlays,
            drain=drain,
        )
        operation = operation_routes(readiness, metrics.exposition)
        control = create_control_app(
            store=store,
            registry=registry,
            runners=runners,
            keys=keys,
            runner_gate=RunnerGate(runner_token),
            policy=policy,
            overlays=overlays,
            fleet=fleet,
            calibrations=calibrations,
            standings=standings,
            operation=None if split else operation,
            installation=Installation(
                settings=settings,
                look_at_store=store.look,
                recent_lines=logs.recent,
                env=os.environ,
                readiness=readiness,
                metrics=metrics.exposition,
                clock=time.time,
            ),
            clock=time.time,
        )
        retention = Retention(
            stages=store.stages,
            blocks=store.engine_blocks,
            days=settings.retention_days,
            rows=settings.retention_rows,
            clock=time.time,
        )

        await _first_look(store, keys, registry, runners, overlays)
        await fleet.declare_once()
        if isinstance(policy, StoredPolicy):
            await policy.sync_once()
        await closing.enter_async_context(
            keep_running(
                {
                    "migration": lambda: _migrate(store, keys, settings.admin_token),
                    "keys": keys.run,
                    "registry": registry.run,
                    "runners": runners.run,
                    "calibrations": calibrations.run,
                    "calibration": calibrations.run_meter,
                    "predictions": worths.run,
                    "fleet": lambda: fleet.run(_POLICY_POLL_S),
                    "policy": lambda: policy.run(_POLICY_POLL_S),
                    "policy history": lambda: history.run(_POLICY_POLL_S),
                    "store writer": writer.run,
                    "retention": retention.run,
                    "engine loads": engine_watch.run,
                    "engine blocks": block_keeper.run,
                    "shadow": feed.run,
                    "pairings": pairings.run,
                    "overlays": overlays.run,
                    "speculations": speculations.run,
                    "drain": lambda: _cut(drain, pool),
                }
            )
        )
        yield _Planes(data=data, control=control, operations=create_operations_app(operation))


async def _first_look(
    store: Store, keys: KeyRing, registry: Registry, runners: Runners, overlays: OverlayBoard
) -> None:
    """What the store knows, before the first request. A store that is down now is read when it is back."""
    try:
        await store.migrate()
    except StoreError as error:
        logger.warning("Starting without the store, which is tried again: %s", error)
    await asyncio.gather(keys.sync_once(), registry.sync_once(), runners.sync_once(), overlays.sync_once())


async def _cut(drain: Drain, pool: BackendPool) -> None:
    """End every call that outlives the drain."""
    await drain.over.wait()
    await pool.cut()


async def _migrate(store: Store, keys: KeyRing, admin_token: str | None) -> None:
    """Do what a start needs as soon as the store can be used, if it could not be before."""
    while True:
        try:
            if not store.migrated:
                await store.migrate()
            if admin_token is not None:
                await keys.open_admin(admin_token)
        except StoreError:
            await asyncio.sleep(_STORE_RETRY_S)
        else:
            return
