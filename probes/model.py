"""Capability, support, finding: the words every probe answers in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Capability(StrEnum):
    """Questions that a probe can put to a backend."""

    MODELS = "models"
    CONTEXT_LENGTH = "context_length"
    STREAMING = "streaming"
    STREAM_USAGE = "stream_usage"
    TOKEN_ID_PROMPTS = "token_id_prompts"
    PROMPT_LISTS = "prompt_lists"
    RETURNED_TOKEN_IDS = "returned_token_ids"
    LOGPROBS = "logprobs"
    TOKENIZE = "tokenize"
    IN_ENGINE = "in_engine"
    DETOKENIZE = "detokenize"
    SCORED = "scored"
    INDEPENDENT_DRAWS = "independent_draws"
    NEUTRAL_DEFAULTS = "neutral_defaults"
    LOAD_GAUGE = "load_gauge"
    SINGLE_PROCESS = "single_process"
    """Learnt from many looks at one URL, not by asking once; no suite has a question for it."""


class Support(StrEnum):
    """The three answers. Silence is never a no."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A probe's answer.

    Attributes:
        capability: The question.
        support: yes, no or unknown.
        evidence: What was seen, short enough to show; never a credential.
        value: The answer's value where it has one (context length in tokens, model ids, ...).
    """

    capability: Capability
    support: Support
    evidence: str
    value: int | str | list[str] | None = None
