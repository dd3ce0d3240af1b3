"""Why a request is not, or no longer, served by the loop. None of these reaches a client."""

from __future__ import annotations

from enum import StrEnum


class WhyPlain(StrEnum):
    """Reasons, as records say them."""

    EXECUTOR_FAILED = "executor_failed"
    """Something failed before the first token; the request was relayed as it came."""
    NO_RUNNER = "no_runner"
    """No draft runner took the loop on."""
    CONTEXT_TOO_LONG = "context_too_long"
    """The strategy's steps would cost too much after so long a context."""
    SLOWER_THAN_PLAIN = "slower_than_plain"
    """The runner measured it inside the request."""
    RUNNER_LOST = "runner_lost"
    """The draft runner went away, or said nothing for too long."""
    RUNNER_DISAGREED = "runner_disagreed"
    """What the draft runner said does not follow from what the target chose."""
    KILLED = "killed"
    """An operator's kill, before the first token or on the way."""
    TARGET_REFUSED = "target_refused"
    """The target did not answer a verification call."""


class GoPlain(Exception):
    """The loop ends here, and the answer is left to plain decoding; the message says what happened.

    Attributes:
        reason: For the record.
    """

    def __init__(self, reason: WhyPlain, what: str) -> None:
        super().__init__(what)
        self.reason = reason
