"""Finished answers as the data plane hands them to the shadow feed."""

from __future__ import annotations

import json
from typing import Any, Literal

from gateway.fleet.model import Backend
from gateway.policy.model import Action, Decision, Facts, Mode
from gateway.shadow.answer import FinishedAnswer

BACKEND = Backend(name="gpu-1", url="http://gpu-1.test")
DECISION = Decision(mode=Mode.SHADOW, action=Action.WOULD_SPECULATE, rule="all", drafter="ngram", k=5)
USAGE = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}


def finished(
    answer: bytes | dict[str, Any],
    *,
    request: dict[str, Any] | None = None,
    endpoint: Literal["chat", "completions", "other"] = "chat",
    decision: Decision = DECISION,
    backend: Backend = BACKEND,
    request_id: str = "r-1",
    **changes: Any,
) -> FinishedAnswer:
    """One answer; a dict is sent as JSON, bytes as a stream."""
    given: dict[str, Any] = {
        "facts": Facts(request_id=request_id, endpoint=endpoint, model="m", tenant="search", temperature=0.5),
        "decision": decision,
        "backend": backend,
        "request_body": json.dumps(request if request is not None else chat_request()).encode(),
        "status": 200,
        "content_type": "application/json"
        if isinstance(answer, dict)
        else "text/event-stream; charset=utf-8",
        "content_encoding": "",
        "answer_body": json.dumps(answer).encode() if isinstance(answer, dict) else answer,
        "complete": True,
        "policy_revision": "abc",
        "at": 1000.0,
        "traceparent": "00-1-2-01",
    }
    return FinishedAnswer(**given | changes)


def chat_request(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "say it"}], **fields}


def chat_answer(
    text: str | None = "a b c", finish_reason: str | None = "length", **changes: Any
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"object": "chat.completion", "choices": [choice], "usage": USAGE} | changes


def stream(*documents: object, line_end: bytes = b"\n", done: bool = True) -> bytes:
    """Documents as server-sent events."""
    events = [b"data: " + json.dumps(document).encode() for document in documents]
    events += [b"data: [DONE]"] if done else []
    return b"".join(event + line_end * 2 for event in events)


def chunk(content: str | None = None, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chunk of a chat stream."""
    delta = delta if content is None else {"content": content, **delta}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], "usage": None}
