"""What a request leaves behind: an AccessRecord for each, a StageRecord if shadow or prod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class AccessRecord:
    """One access-log line. Starts as the worst case; filled in as the request goes. Never prompt text.

    docs/reference-logs.md shows these sentences, so each field has one entry; "None" begins the last of them.

    Attributes:
        request_id: The client's `x-request-id` if it is short and printable, else one of ours; returned.
        method: HTTP method.
        path: Path without query.
        tenant: The API key's tenant; empty where no key was accepted.
        model: The model asked for, whether or not it exists; empty where the body was not read.
        workload: What the request was taken for; empty where the body was not read.
        rule: The policy's rule that applied; empty where none was asked.
        mode: off, shadow or prod.
        action: pass, would_speculate, skip, speculate, control or bypass.
        backend: The last one asked; empty where none was.
        status: HTTP status sent to the client, 499 where it left before one was sent; 0 if nothing was sent.
        instance: Which of the backend's instances, by its URL or address; empty where it has but one.
        ending: `completed`, `client_left`, `backend_broke_off`, an error's code, or `aborted` when
            nothing better was learnt.
        started_at: Unix seconds at which the request arrived.
        first_byte_s: Seconds from arrival to the first body byte sent. None if none was.
        duration_s: Seconds from arrival to the end.
        overhead_s: Seconds spent in the gateway itself before a backend was called. None if none was.
        retries: Further backends or connections tried.
        bytes_out: Bytes of body sent to the client.
        temperature: As the client stated it. None if it did not, or stated no number.
        stream: Whether the client asked for a stream.
        traceparent: The client's W3C trace context. None without one.
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
    temperature: float | None = None
    stream: bool = False
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """The `speculative_decoding` stage of one shadow or prod request. What was not measured is None.

    Counts follow design.md 9: bonus and correction tokens are never accepted tokens, tokens after an
    end-of-sequence do not exist.

    docs/reference-logs.md shows these sentences, so each field has one entry; "None" begins the last of them.

    Attributes:
        request_id: The access line's.
        at: Unix seconds at which the request arrived.
        mode: shadow or prod.
        action: would_speculate, skip, speculate, control or bypass.
        model: The model asked for.
        backend: The backend that answered, or was to.
        rule: The policy's rule that applied.
        tenant: The API key's tenant.
        workload: What the request was taken for: chat, code, rag, summarise, structured,
            creative or other.
        stage: Always `speculative_decoding`.
        reason: Why it was skipped, bypassed or control, or why speculation ended within the answer. None
            otherwise.
        reason_detail: The decision's reason as a sentence, with its numbers. None where the word says it all.
        drafter: What proposed, or would have. None where nothing was to.
        executor: How prod was carried out. None in shadow, and where it was not.
        source: `engine`, `replay` or `loop`: who counted. None where nobody did.
        profile: The engine whose habits the counts follow. None where nothing was counted.
        k: Draft tokens per step at most. None where nothing was to be drafted.
        passes: Decode forwards of the target.
        steps: Passes that verified at least one draft.
        draft_tokens: Proposed draft tokens.
        accepted_tokens: Accepted draft tokens.
        accepted_by_position: i-th entry = steps that accepted at least i+1 drafts.
        acceptance_rate: accepted_tokens / draft_tokens. None as well where nothing was drafted.
        mean_acceptance_length: 1 + accepted_tokens / steps. None as well without a step.
        prompt_tokens: Tokens of the prompt, as the engine counted them.
        completion_tokens: Tokens of the answer, as the engine counted them.
        decode_tokens: Tokens of the answer after those of its first emission, N - n_first.
        decode_seconds: Seconds from the first emission to the last, from the engine's times where it gives
            them.
        tokens_per_second: decode_tokens / decode_seconds. None as well below 16 tokens.
        multiplier: The bucket's running estimate at this moment. None below the minimum sample.
        multiplier_reason: Why multiplier is None. None otherwise.
        control_kind: `switchback` or `replica`: what its speed is compared with. None for a request of
            neither arm.
        control_backend: Whose plain answers are the control. None for a request of neither arm.
        block_at: Unix seconds at which the block of time began that it belongs to. None for a request of
            neither arm.
        block_seconds: Length of that block. None for a request of neither arm.
        first_byte_seconds: From the request's arrival here to the first byte of its streamed answer. None in
            shadow, and for an answer in one piece.
        total_seconds: From its arrival here to the answer's end. None in shadow.
        running: Requests under way at the backend when it was decided, this one included. None in shadow.
        load_source: `engine` where the engine's running gauge was in `running`, `gateway` where only the
            requests that this process knew of were. None in shadow.
        temperature: As the client stated it. None if it did not, or stated no number.
        looping: Whether the answer loops (design.md 9), so that it is left out of sums and predictions. None
            where its ids are not known.
        policy_revision: The policy that decided.
        traceparent: The client's W3C trace context. None without one.
        k_curve: For K = 1..8 (string keys): passes, steps, draft_tokens, accepted_tokens,
            tokens_per_pass, acceptance_rate, passes_by_drafts ({drafts in the pass: passes}). None outside
            shadow.
        compared: What other drafters would have done with the same answer, by name: acceptance_rate,
            steps, draft_tokens and accepted_tokens for the same K, and their `curve`; or the `reason`
            why it is not known. None where the rule compares none.
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
    control_backend: str | None = None
    block_at: float | None = None
    block_seconds: float | None = None
    first_byte_seconds: float | None = None
    total_seconds: float | None = None
    running: int | None = None
    load_source: str | None = None
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
