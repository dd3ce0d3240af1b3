"""The data plane under a real uvicorn on a real socket, with what it records in queues."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import uvicorn

from gateway.background import keep_running
from gateway.errors import InvalidKey
from gateway.evidence.multiplier import MultiplierBook
from gateway.fleet.health import checked_session
from gateway.fleet.load import Load
from gateway.fleet.model import Backend, BackendState, EngineKind, FleetSnapshot
from gateway.fleet.runners import KnownRunner
from gateway.loop.executor import LoopExecutor
from gateway.loop.runner import LoopRunners
from gateway.policy.load import LoadedPolicy
from gateway.policy.model import Policy
from gateway.policy.overlays import KILLED, NO_OVERLAYS, Overlays, Stop
from gateway.policy.standing import Standing
from gateway.proxy.asgi import Receive, Scope, Send
from gateway.proxy.handler import DataPlane, Limits, RecordSink
from gateway.proxy.retry_budget import RetryBudget
from gateway.proxy.speculations import Speculations
from gateway.proxy.upstream import BackendPool, Timeouts
from gateway.shadow.answer import FinishedAnswer
from gateway.shadow.tokenize import BackendTokenizer
from gateway.telemetry.record import AccessRecord, StageRecord
from probes.model import Capability, Finding, Support
from tests.fakes.standings import ScriptedStandings
from tests.fakes.upstream import PATIENCE_S, Script, Upstream

RUNNER_TOKEN = "ace-runner-token-of-the-tests"

PLAIN_SECONDS = 600.0
"""Of a token: so slow that no loop on a busy machine is slower."""

IN_ENGINE = {
    Capability.IN_ENGINE: Finding(capability=Capability.IN_ENGINE, support=Support.YES, evidence="tried")
}


def backend_at(upstream: Upstream | str, name: str = "b1", **facts: Any) -> Backend:
    """A backend that is up, serves `m1` and speaks the in_engine contract."""
    known: dict[str, Any] = {
        "url": upstream if isinstance(upstream, str) else upstream.url,
        "kind": EngineKind.EMBEDDED,
        "state": BackendState.UP,
        "models": ("m1",),
        "findings": IN_ENGINE,
        "probed_at": 1_700_000_000.5,
    }
    return Backend(name=name, **(known | facts))


def policy_with(mode: str, **rule: Any) -> Policy:
    """A policy with one rule for everything."""
    line = {"name": "all", "mode": mode, "experimental": mode == "prod", **rule}
    return Policy.model_validate({"version": 1, "rules": [line]})


def prod_policy(control: float = 0.0, **rule: Any) -> Policy:
    """Everything is speculated, but for `control` of the blocks."""
    return policy_with("prod", prod={"control": {"fraction": control}}, **rule)


class Holder:
    """Holds the policy in force."""

    def __init__(self, policy: Policy) -> None:
        self.current = LoadedPolicy(policy=policy, revision="rev1", source="test", loaded_at=0.0)


class Records:
    """All that the data plane leaves behind."""

    def __init__(self) -> None:
        self._access = queue.Queue[AccessRecord]()
        self.stages: list[StageRecord] = []
        self.offered: list[FinishedAnswer] = []
        self.unreachable: list[tuple[str, str]] = []

    def access(self, record: AccessRecord) -> None:
        self._access.put(record)

    def stage(self, record: StageRecord) -> None:
        self.stages.append(record)

    def offer(self, answer: FinishedAnswer) -> None:
        self.offered.append(answer)

    def report_unreachable(self, name: str, why: str) -> None:
        self.unreachable.append((name, why))

    def next_access(self) -> AccessRecord:
        """The next request's record; waits for the request to end."""
        return self._access.get(timeout=PATIENCE_S)


def identify(authorization: bytes | None) -> str:
    """Knows one key; anonymous clients may come."""
    if authorization in (None, b"Bearer sk-TEST-GW"):
        return "team-a" if authorization else "anonymous"
    raise InvalidKey("This key is not known.")


class _Server(uvicorn.Server):
    """Stops at once, and not at the next tick of a tenth of a second."""

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        if not self.should_exit:
            await self._stopped.wait()

    def stop(self) -> None:
        self.should_exit = True
        if hasattr(self, "_stopped"):
            self._loop.call_soon_threadsafe(self._stopped.set)


class Gateway:
    """The data plane in a thread of its own; use as a context manager."""

    def __init__(
        self,
        backends: Iterable[Backend],
        *,
        policy: Policy | None = None,
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        retries: RetryBudget | None = None,
        runners: Sequence[KnownRunner] = (),
        standing: Standing | None = None,
        clock: Callable[[], float] = lambda: 1_700_000_000.0,
        telemetry: RecordSink | None = None,
        patience_s: int | None = None,
    ) -> None:
        self.records = Records()
        self._telemetry = telemetry or self.records
        self.fleet = FleetSnapshot(tuple(backends))
        self.book = MultiplierBook()
        self.load = Load()
        self.standings = ScriptedStandings(standing or Standing())
        self.pool = BackendPool(timeouts=timeouts or Timeouts())
        self.holder = Holder(policy or policy_with("off"))
        self.stop: Stop | None = None
        self.speculations = Speculations(stop=lambda _: self.stop, pool=self.pool)
        self._runners = runners
        self._limits = limits or Limits()
        self._retries = retries or RetryBudget()
        self._clock = clock
        config = uvicorn.Config(
            self,
            http="httptools",
            loop="uvloop",
            lifespan="off",
            server_header=False,
            date_header=False,
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=patience_s,
        )
        self._server = _Server(config)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._begun = threading.Event()

    def __enter__(self) -> Gateway:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join(PATIENCE_S)
        self._listener.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve())

    def cut(self) -> None:
        """Cut its pool, as at the end of a drain; called from another thread."""
        asyncio.run_coroutine_threadsafe(self.pool.cut(), self._loop).result(PATIENCE_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            async with checked_session() as to_runners, keep_running({"told": self._tell}):
                self._plane = self._data_plane(to_runners)
                self._loop = asyncio.get_running_loop()
                self._begun.set()
                await self._server.serve(sockets=[self._listener])
        finally:
            await self.pool.close()

    async def _tell(self) -> None:
        await self.speculations.run(repeat_s=0.01)

    def kill(self) -> None:
        """Stop all that is speculating, and all that would be."""
        self.stop = Stop(KILLED, "by a test")
        self.standings.standing = replace(self.standings.standing, overlays=Overlays(read=False))
        done = threading.Event()
        assert self._begun.wait(PATIENCE_S)
        self._loop.call_soon_threadsafe(self.speculations.check)
        self._loop.call_soon_threadsafe(done.set)
        assert done.wait(PATIENCE_S)

    def resume(self) -> None:
        """Let what comes be speculated again."""
        self.stop = None
        self.standings.standing = replace(self.standings.standing, overlays=NO_OVERLAYS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._plane(scope, receive, send)

    def _data_plane(self, to_runners: aiohttp.ClientSession) -> DataPlane:
        loop = LoopExecutor(
            pool=self.pool,
            tokenize=BackendTokenizer(self.pool),
            runners=LoopRunners(session=to_runners, runners=lambda: self._runners, token=RUNNER_TOKEN),
            plain_seconds=lambda *_: PLAIN_SECONDS,
            now=self._clock,
            timer=time.perf_counter,
        )
        return DataPlane(
            policy=self.holder,
            fleet=lambda: self.fleet,
            identify=identify,
            pool=self.pool,
            loop=loop,
            telemetry=self._telemetry,
            feed=self.records,
            book=self.book,
            load=self.load,
            standings=self.standings,
            speculations=self.speculations,
            report_unreachable=self.records.report_unreachable,
            limits=self._limits,
            retries=self._retries,
            clock=self._clock,
        )


@contextmanager
def serving(script: Script, **gateway: Any) -> Iterator[tuple[Upstream, Gateway]]:
    """One upstream with a gateway in front of it."""
    with Upstream(script) as upstream, Gateway([backend_at(upstream)], **gateway) as front:
        yield upstream, front
