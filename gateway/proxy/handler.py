"""The request path, top to bottom."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import GatewayError
from gateway.evidence.multiplier import MultiplierBook
from gateway.fleet.load import Load
from gateway.fleet.model import FleetSnapshot
from gateway.loop.executor import LoopExecutor
from gateway.policy.load import PolicyInForce
from gateway.proxy.asgi import Receive, Scope, Send
from gateway.proxy.client import Client
from gateway.proxy.client_watch import ClientLeft, until_client_leaves
from gateway.proxy.dispatch import Dispatcher, Standings, serving
from gateway.proxy.exchange import Exchange
from gateway.proxy.headers import RawHeaders, accepted_request_id, first
from gateway.proxy.intake import RequestBody, read_request
from gateway.proxy.models import models_answer
from gateway.proxy.relay import COMPLETED, relay
from gateway.proxy.retry_budget import RetryBudget
from gateway.proxy.routes import Route, model_in, route_of
from gateway.proxy.speculations import Speculations
from gateway.proxy.stages import Feed, Stages, StageSink
from gateway.proxy.upstream import BackendPool
from gateway.telemetry.record import AccessRecord

logger = logging.getLogger(__name__)

CLIENT_LEFT = "client_left"
_CLIENT_CLOSED_REQUEST = 499


class RecordSink(StageSink, Protocol):
    """Takes the records that requests leave."""

    def access(self, record: AccessRecord) -> None:
        """Take one; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of one request or answer is held in memory.

    Attributes:
        body_bytes: A larger request body is refused.
        copy_bytes: Of a larger answer no copy is kept, so it is relayed and not measured.
    """

    body_bytes: int = 32 * 2**20
    copy_bytes: int = 4 * 2**20


@dataclass(slots=True)
class _Visit:
    """A client's request while it is being served."""

    raw_path: bytes
    query: bytes
    headers: RawHeaders
    body: RequestBody
    client: Client
    access: AccessRecord
    exchange: Exchange | None = None


class DataPlane:
    """ASGI application for everything below `/v1/`; takes scopes of type `http` only.

    Args:
        policy: The policy in force.
        fleet: The current snapshot.
        identify: Authorization header to tenant; raises InvalidKey.
        pool: Connections to backends.
        loop: Carries out `gateway_loop`.
        telemetry: Takes an access record for each request, and a stage record for each in mode prod.
        feed: Takes the finished answer of each request in mode shadow.
        book: Speeds of speculated and control requests.
        load: Requests under way; told of each.
        standings: What decisions look at besides findings.
        speculations: Ends what a kill stops on its way.
        report_unreachable: Told an instance's key and why, when no connection could be opened.
        limits: How much is held in memory.
        retries: Retries that are left.
        clock: Unix time.
        timer: Seconds from any fixed moment.
    """

    def __init__(
        self,
        *,
        policy: PolicyInForce,
        fleet: Callable[[], FleetSnapshot],
        identify: Callable[[bytes | None], str],
        pool: BackendPool,
        loop: LoopExecutor,
        telemetry: RecordSink,
        feed: Feed,
        book: MultiplierBook,
        load: Load,
        standings: Standings,
        speculations: Speculations,
        report_unreachable: Callable[[str, str], None],
        limits: Limits,
        retries: RetryBudget,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._identify = identify
        self._telemetry = telemetry
        self._load = load
        self._speculations = speculations
        self._limits = limits
        self._clock = clock
        self._timer = timer
        self._dispatcher = Dispatcher(
            pool=pool,
            loop=loop,
            budget=retries,
            standings=standings,
            report_unreachable=report_unreachable,
            now=clock,
        )
        self._stages = Stages(sink=telemetry, feed=feed, book=book, now=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; every failure is an answer in OpenAI's error shape."""
        with self._recorded(scope, receive, send) as visit:
            try:
                await self._serve(visit, receive)
            except ClientLeft:
                visit.access.ending = COMPLETED if visit.client.satisfied else CLIENT_LEFT
                visit.access.status = visit.access.status or _CLIENT_CLOSED_REQUEST
            except GatewayError as error:
                await self._refuse(visit, error)
            except Exception:
                request_id = visit.access.request_id
                logger.exception("request %s failed inside the gateway", request_id)
                message = f"The gateway failed on this request. Its log says why; look for {request_id}."
                await self._refuse(visit, GatewayError(message))

    async def _serve(self, visit: _Visit, receive: Receive) -> None:
        """One request, top to bottom."""
        access = visit.access
        route = route_of(access.method, access.path, visit.raw_path)
        access.tenant = self._identify(first(visit.headers, b"authorization"))
        if route is Route.MODELS:
            await visit.client.answer(models_answer(self._fleet(), model_in(access.path)))
            access.ending = COMPLETED
            return
        exchange = visit.exchange = await self._take_in(visit, route)
        backends = serving(exchange.request.facts, self._fleet())
        async with until_client_leaves(receive):
            with (
                self._speculations.watching(exchange),
                closing(await self._dispatcher.open(exchange, backends)) as reply,
            ):
                witness = exchange.call_witness(reply, self._limits.copy_bytes)
                access.ending = await relay(
                    reply, visit.client, witness, place=exchange.place, request_id=access.request_id
                )

    async def _take_in(self, visit: _Visit, route: Route) -> Exchange:
        access = visit.access
        request = await read_request(
            route,
            visit.body,
            method=access.method,
            target=_target(visit),
            headers=visit.headers,
            request_id=access.request_id,
            tenant=access.tenant,
        )
        access.model = request.facts.model
        access.workload = str(request.facts.workload)
        access.temperature = request.facts.temperature
        access.stream = request.facts.stream
        return Exchange(
            request=request,
            policy=self._policy.current,
            access=access,
            since_read=_stopwatch(self._timer),
            place=self._load.place(),
        )

    async def _refuse(self, visit: _Visit, error: GatewayError) -> None:
        """Answer with the error; where an answer has begun, leave it unended, so that the server cuts it."""
        visit.access.ending = error.code
        if visit.client.started:
            return
        with suppress(ClientLeft):
            await visit.body.discard()
            await visit.client.refuse(error, hang_up=not visit.body.ended)

    @contextmanager
    def _recorded(self, scope: Scope, receive: Receive, send: Send) -> Iterator[_Visit]:
        """A visit that leaves its records, whatever happens."""
        elapsed = _stopwatch(self._timer)
        visit = self._visit(scope, receive, send, elapsed)
        try:
            yield visit
        finally:
            visit.access.duration_s = elapsed()
            try:
                if visit.exchange is not None:
                    visit.exchange.place.move(None)
                    self._stages.end(visit.exchange)
            finally:
                self._telemetry.access(visit.access)

    def _visit(self, scope: Scope, receive: Receive, send: Send, elapsed: Callable[[], float]) -> _Visit:
        headers: RawHeaders = tuple(scope["headers"])
        traceparent = first(headers, b"traceparent")
        access = AccessRecord(
            request_id=accepted_request_id(headers) or f"req-{uuid.uuid4().hex}",
            method=scope["method"],
            path=scope["path"],
            started_at=self._clock(),
            traceparent=traceparent.decode("latin-1") if traceparent else None,
        )
        return _Visit(
            raw_path=scope.get("raw_path") or scope["path"].encode(),
            query=scope["query_string"],
            headers=headers,
            body=RequestBody(headers, receive, self._limits.body_bytes),
            client=Client(send, access, elapsed),
            access=access,
        )


def _target(visit: _Visit) -> str:
    target = visit.raw_path + b"?" + visit.query if visit.query else visit.raw_path
    return target.decode("latin-1")


def _stopwatch(timer: Callable[[], float]) -> Callable[[], float]:
    start = timer()
    return lambda: timer() - start
