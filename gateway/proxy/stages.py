"""One stage record for each shadow or prod request, at its end, whatever that was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.evidence.engine_metrics import EngineNumbers, read_engine_metrics
from gateway.evidence.loop_costs import load_band
from gateway.evidence.multiplier import Arm, Bucket, MultiplierBook, temperature_band
from gateway.loop.counts import LoopCounts
from gateway.loop.executor import NAME as GATEWAY_LOOP
from gateway.policy.blocks import REPLICA, SPANS_A_SWITCH, SWITCHBACK, Block, block_at, spans_a_switch
from gateway.policy.model import Action, Control, Mode
from gateway.proxy.exchange import Attempt, Exchange
from gateway.proxy.relay import COMPLETED
from gateway.proxy.witness import BodyMeter, StreamMeter, Tee
from gateway.shadow.answer import FinishedAnswer
from gateway.telemetry.record import StageRecord

_ARMS: Mapping[Action, Arm] = {Action.SPECULATE: "spec", Action.CONTROL: "control"}


class StageSink(Protocol):
    """Takes stage records."""

    def stage(self, record: StageRecord) -> None:
        """Take one; never raises."""


class Feed(Protocol):
    """Takes finished answers of shadow requests, and leaves their stage records."""

    def offer(self, answer: FinishedAnswer) -> None:
        """Take one; never waits."""


class Stages:
    """Ends a request's `speculative_decoding` stage.

    Args:
        sink: Takes the records of prod requests.
        feed: Takes the answers of shadow requests.
        book: Speeds so far; learns this request's.
        now: Unix time.
    """

    def __init__(
        self, *, sink: StageSink, feed: Feed, book: MultiplierBook, now: Callable[[], float]
    ) -> None:
        self._sink = sink
        self._feed = feed
        self._book = book
        self._now = now

    def end(self, exchange: Exchange) -> None:
        """Leave what the request's mode asks for; off leaves nothing."""
        attempt = exchange.attempt
        if attempt is None or attempt.decision.mode is Mode.OFF:
            return
        if attempt.decision.mode is Mode.SHADOW:
            self._feed.offer(_finished(exchange, attempt))
        else:
            self._sink.stage(self._prod_record(exchange, attempt))

    def _prod_record(self, exchange: Exchange, attempt: Attempt) -> StageRecord:
        facts, decision = exchange.request.facts, attempt.decision
        compared = _Compared.of(attempt)
        measured = _measure(exchange, attempt) if compared else _Measured(why_not=decision.reason)
        multiplier, why_no_multiplier = self._multiplier(exchange, attempt, compared, measured)
        numbers = measured.numbers
        return StageRecord(
            request_id=facts.request_id,
            at=exchange.access.started_at,
            mode=str(decision.mode),
            action=str(decision.action),
            model=facts.model,
            backend=attempt.backend.name,
            rule=decision.rule,
            tenant=facts.tenant,
            workload=str(facts.workload),
            reason_detail=decision.detail or (attempt.stopped.why if attempt.stopped else None),
            reason=decision.reason or measured.why_not or _why_plain(attempt, measured),
            drafter=decision.drafter,
            executor=decision.executor,
            source=measured.source if numbers.completion_tokens is not None else None,
            profile=measured.profile,
            k=decision.k,
            passes=numbers.passes,
            steps=numbers.steps,
            draft_tokens=numbers.draft_tokens,
            accepted_tokens=numbers.accepted_tokens,
            accepted_by_position=numbers.accepted_by_position,
            acceptance_rate=numbers.acceptance_rate,
            mean_acceptance_length=numbers.mean_acceptance_length,
            prompt_tokens=numbers.prompt_tokens,
            completion_tokens=numbers.completion_tokens,
            decode_tokens=numbers.decode_tokens,
            decode_seconds=numbers.decode_seconds,
            tokens_per_second=numbers.tokens_per_second,
            multiplier=multiplier,
            multiplier_reason=why_no_multiplier,
            control_kind=compared.kind if compared else None,
            control_backend=compared.backend if compared else None,
            block_at=compared.block.at if compared else None,
            block_seconds=compared.block.seconds if compared else None,
            first_byte_seconds=exchange.access.first_byte_s if facts.stream else None,
            total_seconds=exchange.access.duration_s,
            running=attempt.standing.running,
            load_source=attempt.standing.load_source,
            temperature=facts.temperature,
            looping=measured.looping,
            policy_revision=exchange.policy.revision,
            traceparent=exchange.access.traceparent,
        )

    def _multiplier(
        self, exchange: Exchange, attempt: Attempt, compared: _Compared | None, measured: _Measured
    ) -> tuple[float | None, str | None]:
        """The bucket's multiplier with this request in it, or why there is none."""
        numbers = measured.numbers
        if compared is None or measured.why_not:
            return None, measured.why_not
        if attempt.stopped:
            return None, attempt.stopped.reason
        if compared.spans_a_switch(exchange, attempt, until=self._now()):
            return None, SPANS_A_SWITCH
        bucket = _bucket(exchange, attempt, compared)
        timed = numbers.tokens_per_second is not None
        if timed and numbers.decode_tokens is not None and numbers.decode_seconds is not None:
            self._book.observe(
                bucket, compared.arm, compared.block, numbers.decode_tokens, numbers.decode_seconds
            )
        estimate = self._book.estimate(bucket)
        return estimate.value, estimate.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """How a request takes part in a comparison.

    Attributes:
        kind: How the two arms are kept apart.
        backend: Whose plain answers are the control.
    """

    arm: Arm
    kind: str
    backend: str
    block: Block
    control: Control

    @classmethod
    def of(cls, attempt: Attempt) -> _Compared | None:
        """None for a request that is in no arm."""
        arm, control = _ARMS.get(attempt.decision.action), attempt.decision.control
        if arm is None or control is None:
            return None
        return cls(
            arm=arm,
            kind=SWITCHBACK if control.replica is None else REPLICA,
            backend=control.replica or attempt.backend.name,
            block=block_at(attempt.decided_at, control),
            control=control,
        )

    def spans_a_switch(self, exchange: Exchange, attempt: Attempt, *, until: float) -> bool:
        """Whether the other arm was served between the request's decision and its end."""
        return self.control.replica is None and spans_a_switch(
            attempt.backend.name,
            exchange.request.facts.model,
            attempt.decided_at,
            until,
            self.control,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What was counted of an answer, and why that is not everything.

    Attributes:
        source: Who counted.
        looping: Whether the answer loops; None where its ids are not known.
        why_not: What is missing, so that its speed is not comparable.
        why_plain: Why speculation ended before the answer did; its speed is what speculation came to.
    """

    numbers: EngineNumbers = field(default_factory=EngineNumbers)
    source: str = "engine"
    profile: str | None = None
    looping: bool | None = None
    why_not: str | None = None
    why_plain: str | None = None


def _why_plain(attempt: Attempt, measured: _Measured) -> str | None:
    return attempt.stopped.reason if attempt.stopped else measured.why_plain


def _measure(exchange: Exchange, attempt: Attempt) -> _Measured:
    if failure := _failure(exchange, attempt):
        return _Measured(why_not=failure)
    witness = exchange.witness
    if isinstance(witness, LoopCounts):
        return _Measured(
            numbers=witness.numbers,
            source="loop",
            profile=witness.profile,
            looping=witness.looping,
            why_plain=witness.why_plain,
        )
    if not isinstance(witness, BodyMeter | StreamMeter):
        return _Measured(why_not="encoded_answer")
    numbers = read_engine_metrics(witness.usage, witness.metrics, _stream_seconds(attempt, witness))
    return _Measured(
        numbers=numbers,
        profile=_profile(witness.metrics),
        why_not=_why_incomplete(numbers, witness.metrics, attempt.decision.action),
    )


def _stream_seconds(attempt: Attempt, witness: BodyMeter | StreamMeter) -> float | None:
    """The decode time of a loop's control, as the loop's own is taken: a plain server may report none."""
    in_loop = attempt.decision.executor == GATEWAY_LOOP
    return witness.seconds if in_loop and isinstance(witness, StreamMeter) else None


def _why_incomplete(numbers: EngineNumbers, metrics: object, action: Action) -> str | None:
    if numbers.completion_tokens is None:
        return "no_usage"
    if metrics is None:
        return "no_metrics" if numbers.decode_seconds is None else None
    if not isinstance(metrics, dict):
        return "malformed_metrics"
    if action is Action.SPECULATE and numbers.steps is None:
        counts = metrics.get("speculative_decoding")
        return "no_speculation_metrics" if counts is None else "malformed_metrics"
    return None


def _profile(metrics: object) -> str | None:
    counts = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    profile = counts.get("profile") if isinstance(counts, dict) else None
    return profile if isinstance(profile, str) else None


def _failure(exchange: Exchange, attempt: Attempt) -> str | None:
    if exchange.access.ending != COMPLETED:
        return exchange.access.ending
    return "backend_error" if attempt.reply is None or attempt.reply.status >= 400 else None


def _bucket(exchange: Exchange, attempt: Attempt, compared: _Compared) -> Bucket:
    facts, decision = exchange.request.facts, attempt.decision
    return Bucket(
        model=facts.model,
        backend=attempt.backend.name,
        control_backend=compared.backend,
        executor=decision.executor or "",
        drafter=decision.drafter or "",
        k=decision.k or 0,
        workload=str(facts.workload),
        temperature_band=temperature_band(facts.temperature),
        load_band=load_band(attempt.standing.running),
    )


def _finished(exchange: Exchange, attempt: Attempt) -> FinishedAnswer:
    reply, tee = attempt.reply, exchange.witness
    copied = isinstance(tee, Tee) and not tee.overflown
    return FinishedAnswer(
        facts=exchange.request.facts,
        decision=attempt.decision,
        backend=attempt.backend,
        request_body=exchange.request.body,
        status=reply.status if reply else 0,
        content_type=reply.header(b"content-type") if reply else "",
        content_encoding=reply.header(b"content-encoding") if reply else "",
        answer_body=tee.copy if isinstance(tee, Tee) else b"",
        complete=copied and exchange.access.ending == COMPLETED,
        too_large=isinstance(tee, Tee) and tee.overflown,
        policy_revision=exchange.policy.revision,
        at=exchange.access.started_at,
        traceparent=exchange.access.traceparent,
    )
