"""One answer, token by token: driven by a draft runner as long as that goes well, and plainly from there."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import BackendBrokeOff, BackendError, BackendTimeout, GatewayStopping
from gateway.evidence.sse import SseParser
from gateway.fleet.model import Backend
from gateway.loop.calls import open_call
from gateway.loop.errors import GoPlain, WhyPlain
from gateway.loop.runner import LoopRunners, LoopStart, RunnerLoop
from gateway.loop.strategies import COMPLETIONS, Choices, Strategy, TargetAsk
from gateway.loop.text import Token
from gateway.policy.overlays import Stop
from gateway.proxy.json_calls import ids_in
from gateway.proxy.upstream import BackendPool, Reply

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What one pass, or one chunk of plain decoding, added to the answer.

    Attributes:
        at: When it was known, in seconds of the generation's clock.
        why_plain: Why it was decoded without the loop; None for a pass of the loop.
        drafted: Draft tokens that were verified.
        accepted: Those of them that are among the tokens, which they begin.
        finished: Why the answer ends here, in OpenAI's words; None if it does not.
    """

    tokens: tuple[Token, ...]
    at: float
    why_plain: WhyPlain | None = None
    drafted: int = 0
    accepted: int = 0
    finished: str | None = None


_FINISHED = (None, "stop", "length")
_SAID_AS_IT_IS = (WhyPlain.NO_RUNNER, WhyPlain.KILLED)
_ON_PURPOSE = (WhyPlain.SLOWER_THAN_PLAIN, WhyPlain.KILLED)

Emit = Callable[[Emission], None]


class Generation:
    """Generates one answer.

    Args:
        pool: Connections to the target.
        backend: The target.
        request_id: For the log.
        ask: What every call of it repeats.
        strategy: How it is made to verify.
        runners: Where the drafts come from.
        start: What a runner is told. Its `max_tokens` are those of the loop, not of the answer.
        max_tokens: Most tokens of the answer.
        clock: Seconds from any fixed moment.
        stopped: Asked before each pass; names what has ended speculation.
    """

    def __init__(
        self,
        *,
        pool: BackendPool,
        backend: Backend,
        request_id: str,
        ask: TargetAsk,
        strategy: Strategy,
        runners: LoopRunners,
        start: LoopStart,
        max_tokens: int,
        clock: Callable[[], float],
        stopped: Callable[[], Stop | None],
    ) -> None:
        self._pool = pool
        self._backend = backend
        self._request_id = request_id
        self._ask = ask
        self._strategy = strategy
        self._runners = runners
        self._start = start
        self._max_tokens = max_tokens
        self._clock = clock
        self._stopped = stopped
        self._context = list(start.prompt_ids)

    async def run(self, emit: Emit) -> None:
        """Hand every emission to `emit`, in order; the last one is finished.

        Raises:
            GoPlain: The loop failed, or was stopped, before the first token.
            BackendError: The target failed.
        """
        try:
            await self._speculate(emit)
        except GoPlain as stopped:
            if self._left == self._max_tokens:
                if stopped.reason in _SAID_AS_IT_IS:
                    raise
                raise GoPlain(WhyPlain.EXECUTOR_FAILED, str(stopped)) from stopped
            if stopped.reason not in _ON_PURPOSE:
                logger.warning("Request %s goes on without speculation: %s", self._request_id, stopped)
            await self._go_on_plainly(stopped.reason, emit)

    @property
    def _left(self) -> int:
        """How many tokens the answer may still have."""
        return self._max_tokens - (len(self._context) - len(self._start.prompt_ids))

    async def _speculate(self, emit: Emit) -> None:
        async with self._runners.opened(self._start) as loop:
            draft: tuple[int, ...] | None = ()
            while draft is not None:
                draft = await self._pass(loop, draft, emit)

    async def _pass(self, loop: RunnerLoop, draft: Sequence[int], emit: Emit) -> tuple[int, ...] | None:
        """Verify `draft`; return the next, or None when the answer is finished."""
        if stop := self._stopped():
            raise GoPlain(WhyPlain.KILLED, stop.why)
        choices = await self._choices(draft)
        done = await loop.verify(draft, choices)
        self._context += done.emitted
        finished = "stop" if done.ended else None if self._left else "length"
        emit(
            Emission(
                tokens=_chosen(choices, len(done.emitted)),
                at=self._clock(),
                drafted=len(draft),
                accepted=done.accepted,
                finished=finished,
            )
        )
        if finished:
            await loop.finish()
            return None
        if done.slower_than_plain:
            raise GoPlain(WhyPlain.SLOWER_THAN_PLAIN, "plain decoding is faster")
        if done.draft is None:
            raise GoPlain(WhyPlain.CONTEXT_TOO_LONG, f"loops end at {len(self._context)} tokens of context")
        return done.draft

    async def _choices(self, draft: Sequence[int]) -> Choices:
        try:
            return await self._strategy.choices(self._context, draft)
        except (BackendTimeout, GatewayStopping):
            raise  # the target has had its time, or we have, and it is not asked for the same again
        except BackendError as error:
            raise GoPlain(WhyPlain.TARGET_REFUSED, str(error)) from error

    async def _go_on_plainly(self, why: WhyPlain, emit: Emit) -> None:
        """The rest of the answer, as the target continues the tokens so far."""
        body = self._ask.body(self._context, max_tokens=self._left, stream=True, return_token_ids=True)
        try:
            with closing(await open_call(self._pool, self._backend, COMPLETIONS, body)) as reply:
                async for choice in _choices_of(reply):
                    emission = self._taken(choice, why)
                    if emission.tokens or emission.finished:
                        emit(emission)
                    if emission.finished:
                        return
        except (BackendTimeout, GatewayStopping):
            raise
        except BackendError as error:
            logger.warning("Request %s could not be continued: %s", self._request_id, error)
        raise BackendBrokeOff(self._backend.name)

    def _taken(self, choice: Mapping[str, Any], why: WhyPlain) -> Emission:
        """What a chunk of the plain stream holds, which the answer now has."""
        ids, finished = ids_in(choice.get("token_ids")), choice.get("finish_reason")
        if ids is None or len(ids) > self._left or finished not in _FINISHED:
            raise BackendError(f"Backend {self._backend.name!r} continues an answer without its token ids.")
        self._context += ids
        tokens = _continued(ids, ended=finished == "stop", text=choice.get("text"))
        return Emission(tokens=tokens, at=self._clock(), why_plain=why, finished=finished)


def _chosen(choices: Choices, count: int) -> tuple[Token, ...]:
    silent = choices.silent or (False,) * count
    return tuple(
        Token(choices.ids[place], ends=choices.ends[place], silent=silent[place]) for place in range(count)
    )


def _continued(ids: Sequence[int], *, ended: bool, text: object) -> tuple[Token, ...]:
    last = len(ids) - 1
    alone = len(ids) == 1
    return tuple(
        Token(token, ends=ended and place == last, silent=alone and text == "")
        for place, token in enumerate(ids)
    )


async def _choices_of(reply: Reply) -> AsyncIterator[Mapping[str, Any]]:
    """The choice that each chunk of a stream for one prompt holds."""
    parser = SseParser()
    async for piece in reply.chunks():
        for event in parser.feed(piece):
            if event.data and (choice := _choice(event.data)):
                yield choice


def _choice(data: bytes) -> Mapping[str, Any] | None:
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    match chunk:
        case {"choices": [dict() as choice]}:
            return choice
    return None
