"""Chooses a backend, asks it, and asks another only where the request cannot have run."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from gateway.errors import (
    BackendError,
    BackendHungUp,
    BackendUnreachable,
    MalformedRequest,
    NoBackendUp,
    UnknownModel,
)
from gateway.fleet.model import Backend, BackendState, FleetSnapshot
from gateway.loop.errors import GoPlain, WhyPlain
from gateway.loop.executor import NAME as GATEWAY_LOOP
from gateway.loop.executor import LoopExecutor
from gateway.policy.decide import decide
from gateway.policy.gate import NOT_CALIBRATED
from gateway.policy.model import Action, Decision, Facts
from gateway.policy.standing import Standing
from gateway.proxy.exchange import Attempt, Exchange
from gateway.proxy.headers import to_backend
from gateway.proxy.retry_budget import RetryBudget
from gateway.proxy.upstream import Answer, BackendPool, Call

_BUSY = frozenset({429, 503})
"""Answers that say the request was not run."""
_EDIT_REFUSED = frozenset({400, 422, 500})
"""Answers that a word of ours in the request may have caused."""


class Standings(Protocol):
    """What is known beside findings. `gateway.evidence.standings.Standings` is one."""

    def at(self, backend: Backend, model: str, running: int) -> Standing:
        """As things are now, for a request for `model` that is one of `running` at `backend`."""
        ...

    def want_calibration(self, backend: Backend, model: str, drafter: str, running: int) -> None:
        """A request was bypassed because nobody has measured what a step costs there, at that load."""
        ...


class Dispatcher:
    """Opens the call that answers a request.

    Args:
        pool: Connections.
        loop: Carries out `gateway_loop`.
        budget: Retries that are left.
        standings: What decisions look at besides findings.
        report_unreachable: Told an instance's key and why it could not be reached.
        now: Unix time.
        draw: A number in [0, 1); spreads requests over the instances of one backend that are equally loaded.
    """

    def __init__(
        self,
        *,
        pool: BackendPool,
        loop: LoopExecutor,
        budget: RetryBudget,
        standings: Standings,
        report_unreachable: Callable[[str, str], None],
        now: Callable[[], float],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._pool = pool
        self._loop = loop
        self._budget = budget
        self._standings = standings
        self._report_unreachable = report_unreachable
        self._now = now
        self._draw = draw

    async def open(self, exchange: Exchange, backends: tuple[Backend, ...]) -> Answer:
        """The answer's head, from the first of `backends` that gives one. `exchange` tells which it was.

        Args:
            exchange: The request; its attempt and retries are kept up to date.
            backends: The instances that could serve it, up or not; not empty.

        Raises:
            BackendError: The last one's failure.
        """
        self._budget.earn()
        queue = self._by_load(backends)
        if not queue:
            self._plan(exchange, backends[0])
            raise _none_up(exchange.request.facts.model, backends)
        fresh = False
        while True:
            attempt = self._plan(exchange, queue.popleft())
            try:
                reply = await self._ask(exchange, attempt, fresh=fresh)
            except BackendError as error:
                if isinstance(error, BackendUnreachable):
                    self._report_unreachable(attempt.backend.key, str(error))
                if isinstance(error, BackendHungUp):
                    fresh = True
                    # With no other instance to ask, the same one again on a new connection.
                    queue = queue or deque([attempt.backend])
                if not (error.try_another_backend and queue and self._budget.spend()):
                    raise
            else:
                if not (reply.status in _BUSY and queue and self._budget.spend()):
                    return reply
                reply.close()
            exchange.access.retries += 1

    def _by_load(self, backends: tuple[Backend, ...]) -> deque[Backend]:
        up = [backend for backend in backends if backend.state is BackendState.UP]
        order = {name: place for place, name in enumerate(dict.fromkeys(b.name for b in up))}
        return deque(sorted(up, key=lambda b: (self._pool.in_flight(b.key), order[b.name], self._draw())))

    def _plan(self, exchange: Exchange, backend: Backend) -> Attempt:
        facts = exchange.request.facts
        standing = self._standings.at(backend, facts.model, exchange.place.among(backend.key))
        at = self._now()
        decision = decide(exchange.policy.policy, facts, backend, at, standing)
        if decision.reason == NOT_CALIBRATED and decision.drafter:
            self._standings.want_calibration(backend, facts.model, decision.drafter, standing.running)
        return exchange.plan(decision, backend, standing, at)

    async def _ask(self, exchange: Exchange, attempt: Attempt, *, fresh: bool) -> Answer:
        if exchange.access.overhead_s is None:
            exchange.access.overhead_s = exchange.since_read()
        if (attempt.decision.executor, attempt.decision.action) == (GATEWAY_LOOP, Action.SPECULATE):
            return await self._ask_in_a_loop(exchange, attempt)
        attempt.reply = await self._pool.open(attempt.backend, _call(exchange, attempt), fresh=fresh)
        if not (attempt.spelling.edited and attempt.reply.status in _EDIT_REFUSED):
            return attempt.reply
        attempt.reply.close()
        refusal = GoPlain(WhyPlain.EXECUTOR_FAILED, "the engine refused the request as it was edited")
        return await self._ask_plainly(exchange, attempt, refusal)

    async def _ask_in_a_loop(self, exchange: Exchange, attempt: Attempt) -> Answer:
        try:
            attempt.reply = await self._loop.open(
                exchange.request, attempt.decision, attempt.backend, stopped=lambda: attempt.stopped
            )
        except GoPlain as stopped:
            return await self._ask_plainly(exchange, attempt, stopped)
        return attempt.reply

    async def _ask_plainly(self, exchange: Exchange, tried: Attempt, why: GoPlain) -> Answer:
        """The answer to the client's own request, after speculation came to nothing."""
        exchange.access.retries += 1
        decision = _bypass(tried.decision, why.reason, why)
        plain = exchange.plan(decision, tried.backend, tried.standing, tried.decided_at)
        plain.reply = await self._pool.open(plain.backend, _call(exchange, plain), fresh=True)
        if plain.reply.status >= 400:
            # So it was not our doing: the client's request is at fault, or the backend.
            plain.decision = _bypass(tried.decision, "backend_error", why)
        return plain.reply


def serving(facts: Facts, fleet: FleetSnapshot) -> tuple[Backend, ...]:
    """The instances that a request could go to, up or not; never empty.

    Raises:
        UnknownModel: None lists the model.
        MalformedRequest: The request names no model, and there is not exactly one backend.
    """
    if facts.model or facts.endpoint != "other":
        if found := fleet.serving(facts.model):
            return found
        raise UnknownModel(facts.model, fleet_models(fleet))
    names = {backend.name for backend in fleet.backends}
    if len(names) == 1:
        return fleet.backends
    raise MalformedRequest(
        f"This route is passed through to one backend, and {len(names)} are registered. "
        "Say which: send a JSON body whose `model` one of them lists."
    )


def fleet_models(fleet: FleetSnapshot) -> tuple[str, ...]:
    """Every model that a registered backend lists."""
    return tuple(sorted({model for backend in fleet.backends for model in backend.models}))


def _bypass(decision: Decision, reason: str, why: GoPlain) -> Decision:
    line = f"{decision.rule}: {why}, so the request was sent as it came"
    return replace(
        decision,
        action=Action.BYPASS,
        reason=str(reason),
        executor=None,
        strategy=None,
        control=None,
        detail=str(why),
        trail=(*decision.trail, line),
    )


def _call(exchange: Exchange, attempt: Attempt) -> Call:
    request = exchange.request
    return Call(
        method=request.method,
        target=request.target,
        headers=to_backend(request.headers, request.facts.request_id, readable=attempt.spelling.edited),
        body=attempt.spelling.body,
    )


def _none_up(model: str, backends: tuple[Backend, ...]) -> NoBackendUp:
    names = ", ".join(dict.fromkeys(repr(backend.name) for backend in backends))
    served = f"the model {model!r}" if model else "this route"
    return NoBackendUp(
        f"No backend that serves {served} is up: {names}. Try again soon; `ace backends show NAME` says why."
    )
