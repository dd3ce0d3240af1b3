"""Opens a request's answer in a loop: the prompt's ids, a draft runner, and the first token."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from gateway.errors import BackendError, BackendTimeout
from gateway.fleet.model import Backend, EngineKind
from gateway.loop.answer import LoopAnswer, streamed, whole
from gateway.loop.calls import detokenize
from gateway.loop.counts import LoopCounts
from gateway.loop.errors import GoPlain, WhyPlain
from gateway.loop.generation import Generation
from gateway.loop.request import LoopRequest, read_loop_request
from gateway.loop.runner import LoopRunners, LoopStart
from gateway.loop.shape import Shape
from gateway.loop.strategies import LONGEST_CONTEXT, STRATEGIES
from gateway.loop.text import AnswerText
from gateway.loop.writing import Writing
from gateway.policy.model import Decision, Facts
from gateway.policy.overlays import Stop
from gateway.proxy.intake import InferenceRequest
from gateway.proxy.upstream import BackendPool
from gateway.shadow.tokenize import Tokenize
from probes.model import Capability

NAME = "gateway_loop"
"""The executor's word in policies, decisions and records."""

PROFILE = "runner"
"""Whose drafting habits a loop has: the draft runner's own."""

_SHOWS_HALVES = frozenset({EngineKind.EMBEDDED})
"""Engines that show a character which the answer's end left incomplete; vLLM leaves it out."""


class LoopExecutor:
    """Carries out `gateway_loop`.

    Args:
        pool: Connections to backends.
        tokenize: Gives a prompt's ids.
        runners: Where drafts come from.
        plain_seconds: (instance, model) to the seconds that a token of plain decoding takes there; None when
            that is not known.
        now: Unix time.
        timer: Seconds from any fixed moment.
    """

    def __init__(
        self,
        *,
        pool: BackendPool,
        tokenize: Tokenize,
        runners: LoopRunners,
        plain_seconds: Callable[[Backend, str], float | None],
        now: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._tokenize = tokenize
        self._runners = runners
        self._plain_seconds = plain_seconds
        self._now = now
        self._timer = timer

    async def open(
        self,
        request: InferenceRequest,
        decision: Decision,
        backend: Backend,
        *,
        stopped: Callable[[], Stop | None],
    ) -> LoopAnswer:
        """The answer, begun. The caller closes it.

        Args:
            request: The client's.
            decision: To speculate.
            backend: The target.
            stopped: Asked before each pass; the answer goes on plainly once it names something.

        Raises:
            GoPlain: The loop cannot serve the request, or failed before anything was written.
            BackendTimeout: The target was given a call and did not answer it in time.
        """
        try:
            return await self._opened(read_loop_request(request), request.facts, decision, backend, stopped)
        except BackendTimeout:
            raise
        except BackendError as error:
            raise GoPlain(WhyPlain.EXECUTOR_FAILED, str(error)) from error

    async def _opened(
        self,
        asked: LoopRequest,
        facts: Facts,
        decision: Decision,
        backend: Backend,
        stopped: Callable[[], Stop | None],
    ) -> LoopAnswer:
        prompt = await self._prompt_ids(asked, backend)
        spell = functools.partial(detokenize, self._pool, backend, asked.ask.model)
        writing = Writing(
            generation=self._generation(asked, prompt, facts, decision, backend, stopped),
            begin_text=lambda: AnswerText.after(
                prompt, spell=spell, stops=asked.stop, shows_halves=backend.kind in _SHOWS_HALVES
            ),
            counts=LoopCounts(prompt_tokens=len(prompt), k=decision.k or 0, profile=PROFILE),
        )
        shape = Shape(
            chat=asked.chat,
            request_id=asked.request_id,
            created=int(self._now()),
            model=asked.ask.model,
        )
        try:
            if asked.stream:
                return await streamed(writing, shape, wants_usage=asked.wants_usage)
            return await whole(writing, shape)
        except BaseException:
            writing.close()
            raise

    async def _prompt_ids(self, asked: LoopRequest, backend: Backend) -> tuple[int, ...]:
        if asked.prompt.ids is not None:
            return asked.prompt.ids
        ids = await self._tokenize(backend, asked.prompt.payload)
        if not ids:
            raise GoPlain(WhyPlain.EXECUTOR_FAILED, f"backend {backend.name!r} gives no ids for the prompt")
        return tuple(ids)

    def _generation(
        self,
        asked: LoopRequest,
        prompt: tuple[int, ...],
        facts: Facts,
        decision: Decision,
        backend: Backend,
        stopped: Callable[[], Stop | None],
    ) -> Generation:
        if decision.strategy is None or decision.drafter is None or decision.k is None:
            raise GoPlain(WhyPlain.EXECUTOR_FAILED, "the decision names no strategy, drafter or K")
        max_tokens = _max_tokens(asked, prompt, backend)
        in_loop = min(max_tokens, LONGEST_CONTEXT[decision.strategy] - len(prompt))
        if in_loop < 1:
            raise GoPlain(WhyPlain.CONTEXT_TOO_LONG, f"a prompt of {len(prompt)} tokens is too long for it")
        return Generation(
            pool=self._pool,
            backend=backend,
            request_id=asked.request_id,
            ask=asked.ask,
            strategy=STRATEGIES[decision.strategy](pool=self._pool, backend=backend, ask=asked.ask),
            runners=self._runners,
            start=LoopStart(
                prompt_ids=prompt,
                drafter=decision.drafter,
                profile=PROFILE,
                k=decision.k,
                tenant=facts.tenant,
                max_tokens=in_loop,
                plain_seconds_per_token=self._plain_seconds(backend, facts.model),
            ),
            max_tokens=max_tokens,
            clock=self._timer,
            stopped=stopped,
        )


def _max_tokens(asked: LoopRequest, prompt: Sequence[int], backend: Backend) -> int:
    """Most tokens of the answer: what the request says, or what fits into the context."""
    finding = backend.findings.get(Capability.CONTEXT_LENGTH)
    context = finding.value if finding and isinstance(finding.value, int) else None
    room = None if context is None else context - len(prompt)
    if asked.max_tokens is not None and (room is None or asked.max_tokens <= room):
        return asked.max_tokens
    if asked.max_tokens is None and room is not None and room > 0:
        return room
    raise GoPlain(
        WhyPlain.EXECUTOR_FAILED, f"how long the answer may be is for backend {backend.name!r} to say"
    )
