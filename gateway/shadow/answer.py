"""FinishedAnswer: all that shadow keeps of a relayed request, until it has been replayed."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.fleet.model import Backend
from gateway.policy.model import Decision, Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAnswer:
    """One shadow-mode request after its relay has ended, however it ended.

    Content is left out of `repr`, so that no log line or traceback can show it.

    Attributes:
        decision: Its action is would_speculate, or skip for an answer that is only to be counted.
        backend: The backend that answered, as the request saw it.
        request_body: The client's body, byte for byte.
        status: The backend's HTTP status; 0 if there was none.
        content_encoding: The answer's `Content-Encoding`; empty for none.
        answer_body: What the backend sent, up to the tee's limit.
        complete: The relay ended well and the tee holds all of it.
        too_large: The answer went over the tee's limit, so that there is no copy of it.
        at: Unix time of the request.
    """

    facts: Facts
    decision: Decision
    backend: Backend
    request_body: bytes = field(repr=False)
    status: int
    content_type: str
    content_encoding: str
    answer_body: bytes = field(repr=False)
    complete: bool
    policy_revision: str
    at: float
    traceparent: str | None
    too_large: bool = False
