"""What this process has speculating, and its end as soon as a kill begins to match."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from gateway.errors import BackendError
from gateway.policy.model import Action
from gateway.policy.overlays import Stop, Subject
from gateway.proxy.dialects.vllm_xargs import EXECUTOR as IN_ENGINE
from gateway.proxy.dialects.vllm_xargs import plain_call
from gateway.proxy.exchange import Attempt, Exchange
from gateway.proxy.upstream import BackendPool

REPEAT_S = 0.5
"""Between two calls that tell an engine the same, while it may not have known a request at the first."""

ANSWER_S = 1.0
"""Longest wait for the answer to such a call. An engine heeds it on arrival, and may be long in answering."""

MAX_IDS = 256
"""Requests named in one call."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A request whose engine is to be told, and the attempt that the engine has."""

    exchange: Exchange
    attempt: Attempt


class Speculations:
    """Marks what a kill stops: `gateway_loop` looks at the mark before each pass, engines are told.

    Args:
        stop: What stops a request now.
        pool: Connections to backends.
    """

    def __init__(self, *, stop: Callable[[Subject], Stop | None], pool: BackendPool) -> None:
        self._stop = stop
        self._pool = pool
        self._under_way: dict[int, Exchange] = {}
        # Each for one backend and model, so that one call can name them all.
        self._to_tell = asyncio.Queue[list[_Stopped]]()
        self._deaf: set[str] = set()

    @contextmanager
    def watching(self, exchange: Exchange) -> Iterator[None]:
        """Keep an eye on a request while the block runs."""
        self._under_way[id(exchange)] = exchange
        try:
            yield
        finally:
            del self._under_way[id(exchange)]

    def check(self) -> None:
        """Look at all that is speculating, since overlays have changed. Does not wait."""
        in_engines: defaultdict[tuple[str, str], list[_Stopped]] = defaultdict(list)
        for exchange in self._under_way.values():
            attempt = exchange.attempt
            if attempt is None or attempt.stopped or attempt.decision.action is not Action.SPECULATE:
                continue
            facts, backend = exchange.request.facts, attempt.backend.name
            attempt.stopped = self._stop(Subject.of(facts, backend, attempt.decision.rule))
            if attempt.stopped and attempt.decision.executor == IN_ENGINE:
                in_engines[backend, facts.model].append(_Stopped(exchange, attempt))
        for stopped in in_engines.values():
            for start in range(0, len(stopped), MAX_IDS):
                self._to_tell.put_nowait(stopped[start : start + MAX_IDS])

    async def run(self, repeat_s: float = REPEAT_S) -> None:
        """Tell engines what they are to draft for no more, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                # A task for each, since an engine that hangs must not keep others from being told.
                tasks.create_task(self._tell(await self._to_tell.get(), repeat_s))

    async def _tell(self, left: list[_Stopped], repeat_s: float) -> None:
        """Tell the engine until it must have known every one of the requests, or they have ended."""
        while left := [one for one in left if id(one.exchange) in self._under_way]:
            # An engine that has begun to answer knows the request; before that it may be on its way there.
            unsure = [one for one in left if one.attempt.reply is None]
            if await self._told(left):
                left = unsure
            if left:
                await asyncio.sleep(repeat_s)

    async def _told(self, stopped: Sequence[_Stopped]) -> bool:
        backend, model = stopped[0].attempt.backend, stopped[0].exchange.request.facts.model
        call = plain_call(model, [one.exchange.request.facts.request_id for one in stopped])
        try:
            async with asyncio.timeout(ANSWER_S):
                with closing(await self._pool.open(backend, call)) as reply:
                    failure = None if reply.status == 200 else f"HTTP {reply.status}"
        except TimeoutError:
            failure = f"no answer within {ANSWER_S:g} s"
        except BackendError as error:
            failure = str(error)
        self._note(backend.name, failure)
        return failure is None

    def _note(self, backend: str, failure: str | None) -> None:
        if failure is None:
            self._deaf.discard(backend)
        elif backend not in self._deaf:
            self._deaf.add(backend)
            logger.warning(
                "Backend %r may go on drafting for requests that a kill stopped; it is told again: %s",
                backend,
                failure,
            )
