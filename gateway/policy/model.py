"""Facts, Rule, Policy, Decision: frozen values that policy is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_LOOKAHEAD = 16


class Mode(StrEnum):
    """What a rule asks for."""

    OFF = "off"
    SHADOW = "shadow"
    PROD = "prod"


class Workload(StrEnum):
    """Kinds of work that acceptance depends on."""

    CHAT = "chat"
    CODE = "code"
    RAG = "rag"
    SUMMARISE = "summarise"
    STRUCTURED = "structured"
    CREATIVE = "creative"
    OTHER = "other"


class Action(StrEnum):
    """What happened to a request, as records say it."""

    PASS = "pass"
    """Mode off: relayed, no stage record."""
    WOULD_SPECULATE = "would_speculate"
    """Shadow: the answer goes to replay."""
    SKIP = "skip"
    """Shadow: relayed, and not measured; the record's reason says why."""
    SPECULATE = "speculate"
    CONTROL = "control"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a policy may see of a request.

    Attributes:
        request_id: Feeds the deterministic draws (sample, share).
        endpoint: `chat`, `completions` or `other`.
        temperature: None when the request does not say.
        fields: Top-level request fields whose value differs from the field's documented default.
    """

    request_id: str = ""
    endpoint: Literal["chat", "completions", "other"] = "chat"
    model: str = ""
    tenant: str = "anonymous"
    workload: Workload = Workload.CHAT
    temperature: float | None = None
    stream: bool = False
    fields: frozenset[str] = field(default_factory=frozenset)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


OneOrMany = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]


def _duration(value: object) -> object:
    """`90`, `60s`, `10m`, `2h` to seconds; anything else is left for pydantic to refuse."""
    if isinstance(value, str) and value[:-1].isdigit() and value[-1] in "smh":
        return int(value[:-1]) * {"s": 1, "m": 60, "h": 3600}[value[-1]]
    return value


Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0)]


class Match(_Strict):
    """Which requests a rule speaks for; an absent condition holds for every request."""

    model: OneOrMany | None = None
    tenant: OneOrMany | None = None
    workload: Annotated[tuple[Workload, ...], BeforeValidator(_one_or_many)] | None = None
    max_temperature: float | None = Field(default=None, ge=0)

    def why_not(self, facts: Facts) -> str | None:
        """The first condition that does not hold, in words; None when all hold."""
        if self.model and not any(fnmatchcase(facts.model, pattern) for pattern in self.model):
            return f"model {facts.model!r} is none of {list(self.model)}"
        if self.tenant and not any(fnmatchcase(facts.tenant, pattern) for pattern in self.tenant):
            return f"tenant {facts.tenant!r} is none of {list(self.tenant)}"
        if self.workload and facts.workload not in self.workload:
            return f"workload {facts.workload} is none of {[str(w) for w in self.workload]}"
        if self.max_temperature is not None:
            # An unstated temperature is the server's default, 1 in the OpenAI API.
            temperature = 1.0 if facts.temperature is None else facts.temperature
            if temperature > self.max_temperature:
                return f"temperature {temperature:g} is above {self.max_temperature:g}"
        return None


class Lookahead(_Strict):
    """A range of K; which K is used comes from evidence, `max` until there is any."""

    min: int = Field(default=1, ge=1, le=MAX_LOOKAHEAD)
    max: int = Field(default=8, ge=1, le=MAX_LOOKAHEAD)

    @model_validator(mode="after")
    def _ordered(self) -> Lookahead:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Shadow(_Strict):
    """How much of shadow traffic is measured."""

    sample: float = Field(default=1.0, ge=0, le=1)
    max_tokens_per_minute: int | None = Field(default=None, ge=1)


class Control(_Strict):
    """Randomised blocks in which every prod-eligible request is served plainly."""

    block: Seconds = 60.0
    fraction: float = Field(default=0.1, ge=0, le=0.5)


class Prod(_Strict):
    """How prod traffic is driven."""

    executor: Literal["auto", "in_engine"] = "auto"
    share: float = Field(default=1.0, ge=0, le=1)
    control: Control = Control()


class Rule(_Strict):
    """One line of a policy."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    match: Match = Match()
    mode: Mode
    draft: Literal["auto", "none", "ngram"] = "auto"
    lookahead: Annotated[int, Field(ge=1, le=MAX_LOOKAHEAD)] | Lookahead = 5
    shadow: Shadow = Shadow()
    prod: Prod = Prod()
    experimental: bool = False

    @property
    def k(self) -> int:
        """Draft tokens per step that this rule asks for."""
        return self.lookahead if isinstance(self.lookahead, int) else self.lookahead.max


class Policy(_Strict):
    """An ordered list of rules; the first that matches decides, `defaults` otherwise."""

    version: Literal[1]
    defaults: dict[str, Any] = Field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to happen to one request at one backend, and why.

    Attributes:
        action: Where the request goes.
        reason: Why it is not more than that; None for speculate and would_speculate.
        rule: The rule that decided; `default` when none matched.
        drafter: The chosen drafter's name; None without one.
        executor: Set for speculate and control.
        k: Draft tokens per step.
        trail: One line per rule considered, in order.
    """

    mode: Mode
    action: Action
    rule: str
    reason: str | None = None
    drafter: str | None = None
    executor: str | None = None
    k: int | None = None
    max_tokens_per_minute: int | None = None
    trail: tuple[str, ...] = ()
