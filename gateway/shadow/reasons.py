"""Why a shadow request was not measured: one vocabulary for records and metrics."""

from __future__ import annotations

from enum import StrEnum


class SkipReason(StrEnum):
    """Values of a stage record's `reason` where its action is skip."""

    NOT_SAMPLED = "not_sampled"
    """The rule's sample left it out."""
    NO_DRAFTER = "no_drafter"
    """The rule names nothing that could have drafted."""
    QUEUE_FULL = "queue_full"
    OVER_BUDGET = "over_budget"
    """The rule's `max_tokens_per_minute` is spent."""
    BACKEND_ERROR = "backend_error"
    """The backend answered with an error, or did when it was asked for token ids."""
    INCOMPLETE_ANSWER = "incomplete_answer"
    """The client left, the backend broke off, or no finish reason was seen."""
    ANSWER_TOO_LARGE = "answer_too_large"
    ENCODED_ANSWER = "encoded_answer"
    """Compressed between backend and client, so not readable here."""
    NO_USAGE = "no_usage"
    """The engine did not say how many tokens there were (streams say it only when asked)."""
    NO_TOKENIZER = "no_tokenizer"
    """The backend gives no token ids for a text."""
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    """The ids found are not as many as the engine counted."""
    TOKENIZERS_DIFFER = "tokenizers_differ"
    """The draft model means other texts than its target by the same ids."""
    TOKENIZERS_NOT_COMPARED = "tokenizers_not_compared"
    """Whether it does could not be found out; the log says why."""
    IDS_NOT_RECOVERABLE = "ids_not_recoverable"
    """The visible text is not the generated text, or there is more than one answer."""
    RUNNER_UNAVAILABLE = "runner_unavailable"
    REPLAY_FAILED = "replay_failed"
    KILLED = "killed"
    """An operator's kill, before its replay was done."""
    OVERLAYS_UNREAD = "overlays_unread"
    """Nobody could tell yet whether there is a kill."""
    SHUTDOWN = "shutdown"
    """The gateway stopped before its turn came."""


class Skipped(Exception):
    """An answer cannot be measured; `reason` says why."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason.value)
        self.reason = reason
