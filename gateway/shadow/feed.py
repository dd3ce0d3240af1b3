"""The shadow path: finished answers wait here, are replayed one by one, and leave one record each."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.errors import BackendError
from gateway.evidence.loops import is_looping
from gateway.fleet.model import Backend
from gateway.policy.gate import DRAFT_MODEL
from gateway.policy.model import Action
from gateway.policy.overlays import Stop, Subject
from gateway.policy.standing import Pairing
from gateway.shadow.answer import FinishedAnswer
from gateway.shadow.budget import TokenBudget
from gateway.shadow.parse import ReadAnswer, read_answer
from gateway.shadow.profiles import PROFILES
from gateway.shadow.reasons import Skipped, SkipReason
from gateway.shadow.records import replay_record, skip_record
from gateway.shadow.runner import MAX_REPLAY_IDS, Replay, ReplayFailed, RunnerUnavailable
from gateway.shadow.tokenize import Tokenize
from gateway.telemetry.record import StageRecord
from probes.model import Capability, Support

CURVE = range(1, 9)
"""The K for which every record says what would have been counted."""

UNKNOWN_ID = -1
"""Stands for an end-of-sequence that was counted and is not in the text. No draft equals it."""

logger = logging.getLogger(__name__)


class Replayer(Protocol):
    """Scores an answer as if it had been speculated. RunnerClient is one."""

    def check(self, drafter: str) -> None:
        """Find out, without a call, whether anybody could be asked now.

        Raises:
            RunnerUnavailable: nobody could.
        """
        ...

    async def replay(
        self,
        *,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        drafter: str,
        profile: str,
        ks: Sequence[int],
        tenant: str,
        started_at: float,
        max_tokens: int | None,
    ) -> Replay:
        """Counts for every K in `ks`.

        Raises:
            RunnerUnavailable: nobody could be asked.
            ReplayFailed: somebody was, and gave no counts.
        """
        ...


class PairingOf(Protocol):
    """Says whether the draft model there is may draft for a backend's model."""

    async def __call__(self, backend: str, model: str) -> Pairing | None:
        """How their tokenizers compare, compared now if need be; None where no draft model is loaded."""
        ...


class StageSink(Protocol):
    """Takes stage records; never blocks, never raises."""

    def stage(self, record: StageRecord) -> None:
        """Take one record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowLimits:
    """What may wait.

    Attributes:
        max_answers: Answers that wait at most.
        max_bytes: Bytes of requests and answers that wait at most.
        max_answer_bytes: Largest answer, and largest request, that is read at all.
        workers: Processes that share each rule's `max_tokens_per_minute`.
    """

    max_answers: int = 256
    max_bytes: int = 64 * 1024 * 1024
    max_answer_bytes: int = 8 * 1024 * 1024
    workers: int = 1


@dataclass(frozen=True, slots=True)
class _Ids:
    """A request and its answer as the target's token ids, and the answer's token limit where it is known."""

    prompt: Sequence[int]
    answer: Sequence[int]
    max_tokens: int | None


class ShadowFeed:
    """Takes the answers of shadow requests and leaves exactly one stage record for each of them.

    Args:
        telemetry: Where records go.
        tokenize: Asks the backend that answered for token ids.
        runner: Replays.
        pairing: Asked before the draft model is.
        stop: What stops an answer from being replayed now.
        limits: What may wait.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        telemetry: StageSink,
        tokenize: Tokenize,
        runner: Replayer,
        pairing: PairingOf,
        stop: Callable[[Subject], Stop | None],
        limits: ShadowLimits,
        clock: Callable[[], float],
    ) -> None:
        self._telemetry = telemetry
        self._tokenize = tokenize
        self._runner = runner
        self._pairing = pairing
        self._stop = stop
        self._limits = limits
        self._budget = TokenBudget(clock, limits.workers)
        self._waiting: deque[FinishedAnswer] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._closed = False
        # No more than this is known of the answer that is being replayed: its content is gone with it.
        self._replaying: tuple[Subject, asyncio.Task[StageRecord]] | None = None

    def offer(self, answer: FinishedAnswer) -> None:
        """Take an answer. Never blocks; one that cannot be measured leaves its record at once."""
        reason = self._why_not(answer)
        if reason is not None:
            self._telemetry.stage(skip_record(answer, reason))
            return
        self._put(answer)
        self._arrived.set()

    async def run(self) -> None:
        """Replay what waits, one answer at a time, until cancelled; then `close`."""
        try:
            while True:
                # Nothing here may keep a name for the answer: its content is gone once it is replayed.
                await self._measure(await self._next())
        finally:
            self.close()

    def check(self) -> None:
        """Drop what may be replayed no longer, since overlays have changed; also the one under way."""
        for _ in range(len(self._waiting)):
            answer = self._pop()
            if stop := self._stop(_subject(answer)):
                self._telemetry.stage(skip_record(answer, stop.reason))
            else:
                self._put(answer)
        if self._replaying is not None:
            subject, replaying = self._replaying
            if self._stop(subject):
                replaying.cancel()

    def close(self) -> None:
        """Leave a record for every answer that still waits, and from now on for every one offered."""
        self._closed = True
        while self._waiting:
            self._telemetry.stage(skip_record(self._pop(), SkipReason.SHUTDOWN))

    def _why_not(self, answer: FinishedAnswer) -> str | None:
        if (reason := why_unreadable(answer, self._limits.max_answer_bytes)) is not None:
            return reason
        if self._closed:
            return SkipReason.SHUTDOWN
        if stop := self._stop(_subject(answer)):
            return stop.reason
        full = len(self._waiting) >= self._limits.max_answers
        if full or self._waiting_bytes + _size(answer) > self._limits.max_bytes:
            return SkipReason.QUEUE_FULL
        return None

    async def _next(self) -> FinishedAnswer:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._pop()

    def _put(self, answer: FinishedAnswer) -> None:
        self._waiting.append(answer)
        self._waiting_bytes += _size(answer)

    def _pop(self) -> FinishedAnswer:
        answer = self._waiting.popleft()
        self._waiting_bytes -= _size(answer)
        return answer

    async def _measure(self, answer: FinishedAnswer) -> None:
        record = skip_record(answer, SkipReason.SHUTDOWN)
        replaying = asyncio.create_task(self._replayed(answer))
        self._replaying = _subject(answer), replaying
        try:
            record = await replaying
        except Skipped as skipped:
            record = skip_record(answer, skipped.reason)
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) and current.cancelling():
                raise
            record = skip_record(answer, SkipReason.KILLED)
        except Exception as error:  # noqa: BLE001 - a bug here must cost one measurement, not all that follow
            record = skip_record(answer, SkipReason.REPLAY_FAILED)
            # The message could quote the answer, so only where it happened is shown.
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("Shadow replay of %s: %s\n%s", record.request_id, type(error).__name__, where)  # noqa: TRY400
        finally:
            self._replaying = None
            self._telemetry.stage(record)

    async def _replayed(self, answer: FinishedAnswer) -> StageRecord:
        # In a thread, because a long answer takes milliseconds that other requests would wait for.
        read = await asyncio.to_thread(read_answer, answer)
        if read.prompt_tokens + read.completion_tokens > MAX_REPLAY_IDS:
            raise Skipped(SkipReason.ANSWER_TOO_LARGE)
        decision = answer.decision
        drafter, k = decision.drafter, decision.k
        if drafter is None or k is None:
            raise Skipped(SkipReason.NO_DRAFTER)
        self._check_runner(drafter)
        if not self._budget.spend(decision.rule, read.completion_tokens, decision.max_tokens_per_minute):
            raise Skipped(SkipReason.OVER_BUDGET)
        ids = await self._ids(answer.backend, read)
        replay = await self._replay(answer, ids, drafter, k)
        compared = {other: await self._compare(answer, ids, other, k) for other in decision.compare}
        return replay_record(answer, read.numbers, k, replay, compared, looping=is_looping(ids.answer))

    async def _compare(
        self,
        answer: FinishedAnswer,
        ids: _Ids,
        drafter: str,
        k: int,
    ) -> Replay | SkipReason:
        """A further drafter's replay, or why there is none: it must not cost the answer its own."""
        try:
            return await self._replay(answer, ids, drafter, k)
        except Skipped as skipped:
            return skipped.reason

    async def _check_pairing(self, answer: FinishedAnswer) -> None:
        """Before the target's ids are read by a model to which they may mean something else."""
        pairing = await self._pairing(answer.backend.name, answer.facts.model)
        if pairing is None:
            raise Skipped(SkipReason.RUNNER_UNAVAILABLE)
        if not pairing.agrees:
            differ = pairing.agrees is False
            raise Skipped(SkipReason.TOKENIZERS_DIFFER if differ else SkipReason.TOKENIZERS_NOT_COMPARED)

    def _check_runner(self, drafter: str) -> None:
        """Before the backend is put to work for ids that nobody would take."""
        try:
            self._runner.check(drafter)
        except RunnerUnavailable:
            raise Skipped(SkipReason.RUNNER_UNAVAILABLE) from None

    async def _ids(self, backend: Backend, read: ReadAnswer) -> _Ids:
        """Prompt and answer as ids, if they are as many as the engine counted."""
        prompt_ids = read.prompt_ids
        if prompt_ids is None:
            prompt_ids = await self._tokenized(backend, read.prompt_payload)
        if len(prompt_ids) != read.prompt_tokens:
            raise Skipped(SkipReason.TOKENIZER_MISMATCH)
        text_ids = await self._tokenized(backend, read.text_payload) if read.text_payload else ()
        unseen = read.completion_tokens - len(text_ids)
        if unseen == 0:
            return _Ids(prompt_ids, text_ids, read.max_tokens)
        if unseen == 1 and read.may_end_unseen:
            return _Ids(prompt_ids, (*text_ids, UNKNOWN_ID), read.max_tokens)
        raise Skipped(SkipReason.TOKENIZER_MISMATCH)

    async def _tokenized(self, backend: Backend, payload: Mapping[str, Any]) -> tuple[int, ...]:
        try:
            ids = await self._tokenize(backend, payload)
        except BackendError:
            raise Skipped(SkipReason.BACKEND_ERROR) from None
        if ids is None:
            raise Skipped(SkipReason.NO_TOKENIZER)
        return tuple(ids)

    async def _replay(
        self,
        answer: FinishedAnswer,
        ids: _Ids,
        drafter: str,
        k: int,
    ) -> Replay:
        if drafter == DRAFT_MODEL:
            await self._check_pairing(answer)
        try:
            return await self._runner.replay(
                prompt_ids=ids.prompt,
                answer_ids=ids.answer,
                drafter=drafter,
                profile=PROFILES[answer.backend.kind],
                ks=sorted({*CURVE, k}),
                tenant=answer.facts.tenant,
                started_at=answer.at,
                max_tokens=ids.max_tokens,
            )
        except RunnerUnavailable:
            raise Skipped(SkipReason.RUNNER_UNAVAILABLE) from None
        except ReplayFailed as failed:
            logger.warning("A shadow answer could not be replayed: %s", failed)
            raise Skipped(SkipReason.REPLAY_FAILED) from None


def why_unreadable(answer: FinishedAnswer, max_bytes: int) -> str | None:
    """What is already wrong before the body is read; None for an answer that may be measured."""
    decision = answer.decision
    if decision.action is not Action.WOULD_SPECULATE:
        return decision.reason or SkipReason.NOT_SAMPLED
    if not 200 <= answer.status < 300:
        return SkipReason.BACKEND_ERROR
    if answer.too_large or max(len(answer.answer_body), len(answer.request_body)) > max_bytes:
        return SkipReason.ANSWER_TOO_LARGE
    if not answer.complete:
        return SkipReason.INCOMPLETE_ANSWER
    if answer.content_encoding.lower() not in ("", "identity"):
        return SkipReason.ENCODED_ANSWER
    backend = answer.backend
    if backend.tokenizer is None and backend.supports(Capability.TOKENIZE) is Support.NO:
        return SkipReason.NO_TOKENIZER
    return None


def _subject(answer: FinishedAnswer) -> Subject:
    return Subject.of(answer.facts, answer.backend.name, answer.decision.rule)


def _size(answer: FinishedAnswer) -> int:
    return len(answer.request_body) + len(answer.answer_body)
