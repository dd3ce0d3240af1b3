"""The stage record of a shadow request: measured, or skipped with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.evidence.engine_metrics import EngineNumbers, acceptance_rate, mean_acceptance_length
from gateway.policy.model import Action
from gateway.shadow.answer import FinishedAnswer
from gateway.shadow.runner import Replay, ReplayCounts
from gateway.telemetry.record import StageRecord


def skip_record(answer: FinishedAnswer, reason: str) -> StageRecord:
    """The record of an answer that was not measured."""
    return StageRecord(action=Action.SKIP.value, reason=str(reason), **_common(answer))


def replay_record(answer: FinishedAnswer, numbers: EngineNumbers, k: int, replay: Replay) -> StageRecord:
    """The record of a replayed answer: the counts of `k`, beside the curve of every K replayed."""
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
        k_curve={str(k): _curve_point(counts) for k, counts in sorted(replay.curve.items())},
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
