"""Values that the store keeps besides backends and stage records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.policy.blocks import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """An API key as the store knows it: its hash, never the key.

    Attributes:
        prefix: The key's first characters, enough for a person to tell keys apart.
        revoked_at: Unix time; None while the key is good.
    """

    id: str
    name: str
    tenant: str
    prefix: str
    sha256: str
    created_at: float
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyText:
    """A policy text that comes into force.

    Attributes:
        revision: First 12 hex digits of the text's SHA-256.
        text: As it was written, comments included.
        author: Who put it there; for a file, the gateway that saw it.
        source: `store`, or the file's path.
        created_at: Unix time.
    """

    revision: str
    text: str = field(repr=False)
    author: str
    reason: str
    source: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRevision(PolicyText):
    """A policy text that has come into force, as the store keeps it for ever.

    Attributes:
        number: Counts up; a text that came into force twice has two.
    """

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedDraftModel:
    """The draft model that a runner has loaded.

    Attributes:
        fingerprint: Of its weights; another checkpoint has another.
        vocabulary_size: How many token ids it may propose.
    """

    name: str
    fingerprint: str
    vocabulary_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A draft runner that has joined.

    Attributes:
        url: Base URL that the gateway reaches it at.
        draft_model: None when it has loaded none.
        seen_at: Unix time of its latest join; it repeats the join every few seconds.
    """

    url: str
    node: str
    drafters: tuple[str, ...]
    version: str
    joined_at: float
    seen_at: float
    draft_model: AnnouncedDraftModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageQuery:
    """Which stage records are wanted; an absent condition holds for every record.

    Attributes:
        after: Only records made later than this Unix time.
    """

    limit: int = 100
    mode: str | None = None
    action: str | None = None
    model: str | None = None
    request_id: str | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Sums over the stage records that agree in everything that a number may be compared by.

    Attributes:
        temperature_band: As `gateway.evidence.multiplier.temperature_band` names it.
        load_band: As `gateway.evidence.loop_costs.load_band` names it; None in shadow.
        control_backend: Whose plain answers are the control; None where nothing is compared.
        n: Records in the group.
        looping: Those of them whose answers loop. They are in no sum.
        draft_tokens: Sum over the records that have it; None when none has. So are the other sums.
        timed_tokens: Decode tokens of answers whose speed may enter a multiplier.
        timed_seconds: The decode time of the same answers.
    """

    model: str
    backend: str
    workload: str
    drafter: str | None
    executor: str | None
    mode: str
    action: str
    k: int | None
    temperature_band: str
    load_band: str | None
    control_backend: str | None
    n: int
    looping: int
    draft_tokens: int | None
    accepted_tokens: int | None
    timed_tokens: int | None
    timed_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmBlock:
    """The answers of one arm in one block whose speeds may be compared, added up.

    Attributes:
        tokens: Decoded in `seconds`.
        streamed: Answers that were streamed.
        first_byte_seconds: From a request's arrival to the first byte of its answer, over the streamed ones.
        answer_tokens: Generated in all.
        total_seconds: From a request's arrival to its answer's end.
    """

    block: Block
    answers: int
    tokens: float
    seconds: float
    streamed: int
    first_byte_seconds: float
    answer_tokens: int
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """How many stage records share a mode, an action and a reason."""

    mode: str
    action: str
    reason: str | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedAnswer:
    """The K curve of one shadow answer, as its record keeps it."""

    workload: str
    k_curve: Mapping[str, Mapping[str, Any]]
