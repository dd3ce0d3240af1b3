"""The one thread that owns the model, and the queue in front of it.

Generations take turns, one forward each, and share no state that an answer depends on: what runs
beside a request changes when its tokens come, never which.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from draftrunner.embedded.contexts import ContextStore
from draftrunner.embedded.generation import Ask, Emission, Generation, Mode
from draftrunner.embedded.kv import KvCache
from draftrunner.embedded.metrics import EngineMetrics
from draftrunner.embedded.prefixes import PrefixStore
from draftrunner.embedded.scoring import Scoring
from draftrunner.embedded.target import CachedTarget, LanguageModel
from draftrunner.embedded.text import AnswerText, Decode
from draftrunner.model import Drafter, DraftSession

logger = logging.getLogger(__name__)


class QueueFull(Exception):
    """More prompts are waiting than the engine accepts. Nothing of the request was queued."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer cannot be completed. The reason is in the log, not for clients."""


Deliver = Callable[[int, Emission | Failure], None]
"""Receives the index of a prompt and what happened to its answer. Called from the engine's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the engine takes on.

    Attributes:
        running: Most answers that take turns.
        waiting: Most prompts that wait for a turn.
    """

    running: int = 8
    waiting: int = 64

    @property
    def prompts(self) -> int:
        """Most prompts at once, in all."""
        return self.running + self.waiting


class Submission:
    """The prompts of one request, while the engine holds them.

    Attributes:
        request_id: As its client calls it; empty where it has no name.
        plain: Whether no more is to be drafted for it.
    """

    def __init__(self, request_id: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.request_id = request_id
        self.plain = False
        self.cancelled = False

    def cancel(self) -> None:
        """Stop generating before the next forward; nothing more is delivered after that one."""
        self.cancelled = True
        self._wake()


@dataclass(slots=True, kw_only=True)
class _Job:
    """One prompt on its way through the engine."""

    ask: Ask
    index: int
    asked: float
    deliver: Deliver
    submission: Submission
    generation: Generation | Scoring | None = None
    session: DraftSession | None = None
    answer: list[int] = field(default_factory=list)


class Engine:
    """Answers prompts with one model, until closed.

    Args:
        model: The target. Used by the engine's thread alone.
        decode: Turns ids into text. Used by the engine's thread alone.
        drafters: Propose for requests in prod mode, by name, and learn those requests' finished answers.
        prefixes: Keys and values of prompts, kept between requests.
        contexts: Keys and values of contexts after which a draft was scored.
        metrics: Told of everything counted.
        limits: How much to take on before refusing.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        *,
        model: LanguageModel,
        decode: Decode,
        drafters: Mapping[str, Drafter],
        prefixes: PrefixStore,
        contexts: ContextStore,
        metrics: EngineMetrics,
        limits: Limits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits = limits
        self._model = model
        self._decode = decode
        self._drafters = drafters
        self._prefixes = prefixes
        self._contexts = contexts
        self._metrics = metrics
        self._clock = clock
        self._running: deque[_Job] = deque()
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="embedded-engine", daemon=True)
        metrics.watch_queue(lambda: len(self._running), lambda: len(self._waiting))

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the current forward; what is unfinished fails."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def submit(self, asks: Sequence[Ask], deliver: Deliver, request_id: str = "") -> Submission:
        """Queue the prompts of one request: all of them, or none.

        Raises:
            QueueFull: There is no room for all of them.
        """
        submission = Submission(request_id, self._wake)
        now = self._clock()
        with self._changed:
            if len(self._running) + len(self._waiting) + len(asks) > self.limits.prompts:
                raise QueueFull
            for index, ask in enumerate(asks):
                self._waiting.append(
                    _Job(ask=ask, index=index, asked=now, deliver=deliver, submission=submission)
                )
            self._changed.notify()
        for ask in asks:
            self._metrics.prompt_accepted(len(ask.prompt))
        return submission

    def decode_plainly(self, request_ids: Collection[str]) -> None:
        """Draft no more for these requests, from the next forward on; also for those that still wait."""
        with self._changed:
            for job in (*self._running, *self._waiting):
                if job.submission.request_id in request_ids:
                    job.submission.plain = True

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            unfinished = self._advance(job)
            with self._changed:
                self._running.popleft()
                if unfinished:
                    self._running.append(job)
        for left in (*self._running, *self._waiting):
            self._let_go(left)
            left.deliver(left.index, Failure())

    def _next(self) -> _Job | None:
        """Wait for the job whose turn it is; it stays in front of the queue. None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._admit())
            return None if self._closed else self._running[0]

    def _admit(self) -> bool:
        """Let go of what was cancelled, fill the free places; say whether there is anything to do."""
        running, self._running = self._running, deque()
        for job in running:
            if job.submission.cancelled:
                self._let_go(job)
            else:
                self._running.append(job)
        self._waiting = deque(job for job in self._waiting if not job.submission.cancelled)
        while self._waiting and len(self._running) < self.limits.running:
            self._running.append(self._waiting.popleft())
        return bool(self._running)

    def _advance(self, job: _Job) -> bool:
        """Run one forward for `job`; say whether it has more to do."""
        try:
            if job.generation is None:
                job.generation = self._begin(job)
            unfinished = self._forward(job, job.generation)
        except Exception:
            logger.exception("Generating an answer failed")
            self._let_go(job)
            job.deliver(job.index, Failure())
            return False
        if not unfinished:
            self._let_go(job, finished=True)
        return unfinished

    def _let_go(self, job: _Job, *, finished: bool = False) -> None:
        """End the drafter's part in an answer; from a finished one it learns."""
        if job.session is None:
            return
        try:
            job.session.close()
            if finished:
                self._drafters[job.ask.drafter].learn(job.answer, job.ask.origin)
        except Exception:
            logger.exception("Drafter %s failed after the end of an answer", job.ask.drafter)

    def _end_drafting(self, job: _Job, generation: Generation) -> None:
        generation.decode_plainly()
        self._let_go(job)
        job.session = None

    def _forward(self, job: _Job, generation: Generation | Scoring) -> bool:
        if job.submission.plain and isinstance(generation, Generation):
            self._end_drafting(job, generation)
        was_prefilling = generation.prefilling
        emission = generation.advance()
        if emission is None:
            return True
        self._metrics.emitted(len(emission.token_ids))
        job.answer.extend(emission.token_ids)
        job.deliver(job.index, emission)
        if was_prefilling:
            self._prefixes.keep(job.ask.prompt, generation.cache)
        if job.ask.draft_length is not None:
            self._contexts.keep(job.ask.prompt, job.ask.draft_length, generation.cache)
        return emission.finish is None

    def _begin(self, job: _Job) -> Generation | Scoring:
        return self._begin_answer(job) if job.ask.draft_length is None else self._begin_scoring(job)

    def _begin_answer(self, job: _Job) -> Generation:
        ask = job.ask
        if ask.mode is Mode.PROD and not job.submission.plain:
            job.session = self._drafters[ask.drafter].open(ask.prompt, ask.origin)
        return Generation(
            ask,
            target=self._target_after(self._prefixes.find(ask.prompt)),
            session=job.session,
            text=AnswerText(self._decode, ask.stop_strings),
            asked=job.asked,
            clock=self._clock,
            observe_pass=self._metrics.pass_done,
        )

    def _begin_scoring(self, job: _Job) -> Scoring:
        ask = job.ask
        context = ask.prompt[: len(ask.prompt) - (ask.draft_length or 0)]
        grown = self._contexts.take(context)
        return Scoring(
            ask,
            target=self._target_after(self._prefixes.find(context) if grown is None else grown),
            grown=grown is not None,
            text=AnswerText(self._decode, ()),
            asked=job.asked,
            clock=self._clock,
        )

    def _target_after(self, known: KvCache | None) -> CachedTarget:
        return self._model.target(self._model.empty_cache() if known is None else known)
