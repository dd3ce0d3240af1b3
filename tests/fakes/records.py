"""Records as a served request leaves them."""

from typing import Any

from gateway.evidence.engine_blocks import EngineBlock
from gateway.policy.blocks import Block
from gateway.telemetry.record import AccessRecord, StageRecord


def access(**changes: Any) -> AccessRecord:
    values: dict[str, Any] = {
        "request_id": "req-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "tenant": "search",
        "model": "m",
        "rule": "chat",
        "backend": "b",
        "status": 200,
        "ending": "completed",
        "started_at": 1000.0,
        "first_byte_s": 0.5,
        "duration_s": 2.0,
        "overhead_s": 0.0002,
    }
    return AccessRecord(**values | changes)


def stage(**changes: Any) -> StageRecord:
    values: dict[str, Any] = {
        "request_id": "req-1",
        "at": 1000.0,
        "mode": "prod",
        "action": "speculate",
        "model": "m",
        "backend": "b",
        "rule": "chat",
        "tenant": "search",
        "drafter": "ngram",
        "executor": "in_engine",
        "source": "engine",
        "profile": "embedded",
        "k": 3,
        "passes": 12,
        "steps": 10,
        "draft_tokens": 30,
        "accepted_tokens": 18,
        "accepted_by_position": (8, 6, 4),
        "acceptance_rate": 0.6,
        "mean_acceptance_length": 2.8,
        "prompt_tokens": 50,
        "completion_tokens": 31,
        "decode_tokens": 30,
        "decode_seconds": 1.5,
        "tokens_per_second": 20.0,
        "control_kind": "switchback",
        "control_backend": "b",
        "block_at": 960.0,
        "block_seconds": 60.0,
        "first_byte_seconds": 0.5,
        "total_seconds": 2.0,
        "running": 1,
        "load_source": "gateway",
        "policy_revision": "abc",
    }
    return StageRecord(**values | changes)


def engine_block(*, at: float = 960.0, tokens: float = 600.0, backend: str = "b") -> EngineBlock:
    """A minute in which an engine was busy for half the time."""
    return EngineBlock(
        backend=backend, block=Block(at, 60.0), tokens=tokens, busy_seconds=30.0, running_seconds=90.0
    )
