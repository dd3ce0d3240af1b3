"""What a request leaves behind: an AccessRecord for each, a StageRecord if shadow or prod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class AccessRecord:
    """One access-log line. Starts as the worst case; filled in as the request goes. Never prompt text.

    Attributes:
        instance: Which of the backend's instances, by its URL or address; empty where it has but one.
        ending: `completed`, `client_left`, `backend_broke_off`, an error's code, or `aborted` when
            nothing better was learnt.
        first_byte_s: Seconds from arrival to the first body byte sent; None if none was.
        overhead_s: Seconds spent in the gateway itself before the backend was called.
        retries: Further backends or connections tried.
    """

    request_id: str
    method: str = ""
    path: str = ""
    tenant: str = ""
    model: str = ""
    workload: str = ""
    rule: str = ""
    mode: str = "off"
    action: str = "pass"
    backend: str = ""
    instance: str = ""
    status: int = 0
    ending: str = "aborted"
    started_at: float = 0.0
    first_byte_s: float | None = None
    duration_s: float = 0.0
    overhead_s: float | None = None
    retries: int = 0
    bytes_out: int = 0
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """The `speculative_decoding` stage of one shadow or prod request. What was not measured is None.

    Counts follow design.md 9: bonus and correction tokens are never accepted tokens, tokens after an
    end-of-sequence do not exist.

    Attributes:
        action: would_speculate, skip, speculate, control or bypass.
        reason: Why it was skipped, bypassed or control, or why speculation ended within the answer; None
            otherwise.
        reason_detail: The decision's reason as a sentence, with its numbers.
        executor: How prod was carried out; None in shadow.
        source: `engine`, `replay` or `loop`: who counted.
        profile: The engine whose habits the counts follow.
        passes: Decode forwards of the target. steps: those that verified at least one draft.
        accepted_by_position: i-th entry = steps that accepted at least i+1 drafts.
        tokens_per_second: Decode speed, from the engine's times.
        decode_tokens: N - n_first. decode_seconds: t_last - t_first.
        multiplier: The bucket's running estimate at this moment; None below the minimum sample.
        multiplier_reason: Why multiplier is None.
        looping: Whether the answer loops (design.md 9), so that it is left out of sums and predictions; None
            where its ids are not known.
        k_curve: For K = 1..8 (string keys): passes, steps, draft_tokens, accepted_tokens,
            tokens_per_pass, acceptance_rate, passes_by_drafts ({drafts in the pass: passes}).
        compared: What other drafters would have done with the same answer, by name: acceptance_rate,
            steps, draft_tokens and accepted_tokens for the same K, and their `curve`; or the `reason`
            why it is not known.
    """

    request_id: str
    at: float
    mode: str
    action: str
    model: str
    backend: str
    rule: str
    tenant: str = ""
    workload: str = ""
    stage: str = "speculative_decoding"
    reason: str | None = None
    reason_detail: str | None = None
    drafter: str | None = None
    executor: str | None = None
    source: str | None = None
    profile: str | None = None
    k: int | None = None
    passes: int | None = None
    steps: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_by_position: tuple[int, ...] | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    decode_tokens: int | None = None
    decode_seconds: float | None = None
    tokens_per_second: float | None = None
    multiplier: float | None = None
    multiplier_reason: str | None = None
    control_kind: str | None = None
    temperature: float | None = None
    looping: bool | None = None
    policy_revision: str = ""
    traceparent: str | None = None
    k_curve: Mapping[str, Mapping[str, Any]] | None = field(default=None)
    compared: Mapping[str, Mapping[str, Any]] | None = field(default=None)


MAX_TEXT = 512
"""Characters of one text value that leave the process; clients choose some of them."""


def clipped(text: str) -> str:
    """`text` as telemetry shows it: not endless, and valid UTF-8 whatever a client sent."""
    if len(text) <= MAX_TEXT and text.isascii():
        return text
    return text[:MAX_TEXT].encode(errors="replace").decode()
