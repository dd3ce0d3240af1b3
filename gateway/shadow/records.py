"""The stage record of a shadow request: measured, or skipped with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.evidence.engine_metrics import EngineNumbers, acceptance_rate, mean_acceptance_length
from gateway.policy.model import Action
from gateway.shadow.answer import FinishedAnswer
from gateway.shadow.reasons import SkipReason
from gateway.shadow.runner import Replay, ReplayCounts
from gateway.telemetry.record import StageRecord


def skip_record(answer: FinishedAnswer, reason: str) -> StageRecord:
    """The record of an answer that was not measured."""
    return StageRecord(action=Action.SKIP.value, reason=str(reason), **_common(answer))


def replay_record(
    answer: FinishedAnswer,
    numbers: EngineNumbers,
    k: int,
    replay: Replay,
    compared: Mapping[str, Replay | SkipReason],
    *,
    looping: bool,
) -> StageRecord:
    """The record of a replayed answer: the counts of `k`, beside the curve of every K replayed.

    Args:
        answer: What was replayed.
        numbers: What its engine said of it.
        k: Draft tokens per step that the rule asks for.
        replay: What the rule's drafter would have done.
        compared: The same for further drafters by name, or why it is not known.
        looping: Whether the answer loops.
    """
    counts = replay.curve[k]
    return StageRecord(
        action=Action.WOULD_SPECULATE.value,
        source="replay",
        profile=replay.profile,
        passes=counts.passes,
        steps=counts.steps,
        draft_tokens=counts.draft_tokens,
        accepted_tokens=counts.accepted_tokens,
        accepted_by_position=counts.accepted_by_position,
        acceptance_rate=acceptance_rate(counts.accepted_tokens, counts.draft_tokens),
        mean_acceptance_length=mean_acceptance_length(counts.accepted_tokens, counts.steps),
        prompt_tokens=numbers.prompt_tokens,
        completion_tokens=numbers.completion_tokens,
        decode_tokens=numbers.decode_tokens,
        decode_seconds=numbers.decode_seconds,
        tokens_per_second=numbers.tokens_per_second,
        looping=looping,
        k_curve=_curve(replay),
        compared={name: _compared(k, found) for name, found in compared.items()} or None,
        **_common(answer),
    )


def _common(answer: FinishedAnswer) -> dict[str, Any]:
    facts, decision = answer.facts, answer.decision
    return {
        "request_id": facts.request_id,
        "at": answer.at,
        "mode": decision.mode.value,
        "model": facts.model,
        "backend": answer.backend.name,
        "rule": decision.rule,
        "tenant": facts.tenant,
        "workload": facts.workload.value,
        "drafter": decision.drafter,
        "k": decision.k,
        "temperature": facts.temperature,
        "policy_revision": answer.policy_revision,
        "traceparent": answer.traceparent,
    }


def _compared(k: int, found: Replay | SkipReason) -> Mapping[str, Any]:
    if isinstance(found, SkipReason):
        return {"reason": found.value}
    counts = found.curve[k]
    return {
        "acceptance_rate": acceptance_rate(counts.accepted_tokens, counts.draft_tokens),
        "steps": counts.steps,
        "draft_tokens": counts.draft_tokens,
        "accepted_tokens": counts.accepted_tokens,
        "curve": _curve(found),
    }


def _curve(replay: Replay) -> dict[str, Mapping[str, Any]]:
    return {str(k): _curve_point(counts) for k, counts in sorted(replay.curve.items())}


def _curve_point(counts: ReplayCounts) -> Mapping[str, Any]:
    return {
        "passes": counts.passes,
        "steps": counts.steps,
        "draft_tokens": counts.draft_tokens,
        "accepted_tokens": counts.accepted_tokens,
        "tokens_per_pass": counts.tokens_per_pass,
        "acceptance_rate": acceptance_rate(counts.accepted_tokens, counts.draft_tokens),
        "passes_by_drafts": dict(counts.passes_by_drafts),
    }
