"""Facts, Rule, Policy, Decision: frozen values that policy is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

MAX_LOOKAHEAD = 16

LEAST_CONTROL = 0.001
"""Smallest fraction of blocks that is served plainly, if any is: one in 1000."""

Drafter = Literal["ngram", "suffix", "draft_model"]
DRAFTERS: tuple[Drafter, ...] = get_args(Drafter)
"""The words by which a policy names a drafter."""


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
    # The text below a field is its description in policies/schema.json and docs/reference-policy.md.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _one_or_many(value: object) -> object:
    if isinstance(value, list) and not value:
        raise PydanticCustomError("empty_list", "one word, or a list that is not empty")
    return value if isinstance(value, list | tuple) else [value]


def no_look_alike(version: object) -> object:
    """A file format's version, 1: `true` and `1.0` equal it in Python, and only there."""
    if type(version) is not int:
        raise PydanticCustomError("version", "1")
    return version


def _not_left_empty(value: object) -> object:
    if value is None:
        raise PydanticCustomError("left_empty", "a value, or the key left out")
    return value


Text = Annotated[str, Field(min_length=1)]
OneOrMany = Annotated[
    tuple[Text, ...],
    BeforeValidator(_one_or_many, json_schema_input_type=Text | Annotated[list[Text], Field(min_length=1)]),
]
Workloads = Annotated[
    tuple[Workload, ...],
    BeforeValidator(
        _one_or_many, json_schema_input_type=Workload | Annotated[list[Workload], Field(min_length=1)]
    ),
]

_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600}
_DURATION_PATTERN = r"^[0-9]{1,7}[smh]$"


def _duration(value: object) -> object:
    """`60s`, `10m`, `2h` to seconds; a bare number is seconds already."""
    if isinstance(value, str) and re.fullmatch(_DURATION_PATTERN, value):
        return int(value[:-1]) * _SECONDS_PER_UNIT[value[-1]]
    if isinstance(value, str) or value is None:
        raise PydanticCustomError("duration", "a number of seconds, or 60s, 10m, 2h")
    return value


Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Seconds = Annotated[
    Number,
    Field(ge=1),
    BeforeValidator(
        _duration,
        json_schema_input_type=Annotated[float, Field(ge=1)]
        | Annotated[str, Field(pattern=_DURATION_PATTERN)],
    ),
]


def _mode_word(value: object) -> object:
    """YAML 1.1 reads a bare `off` as false, and tools that rewrite YAML write it back so: both mean off."""
    if value is False or (isinstance(value, str) and value.casefold() == Mode.OFF):
        return Mode.OFF
    return value


ModeWord = Annotated[Mode, BeforeValidator(_mode_word, json_schema_input_type=Mode | Literal[False])]


class Match(_Strict):
    """Which requests a rule speaks for; an absent condition holds for every request."""

    model: OneOrMany | SkipJsonSchema[None] = None
    """The request's model; a pattern may use `*`, `?` and `[...]`."""
    tenant: OneOrMany | SkipJsonSchema[None] = None
    """The tenant of the client's API key; a pattern may use `*`, `?` and `[...]`."""
    workload: Workloads | SkipJsonSchema[None] = None
    """The kind of work: from the header `x-ace-workload`, or else told from the request."""
    max_temperature: Annotated[Number, Field(ge=0)] | SkipJsonSchema[None] = None
    """Highest sampling temperature; a request that does not say counts as 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _stated(cls, value: object) -> object:
        # A condition whose value was forgotten must not come to hold for every request.
        return _not_left_empty(value)

    def why_not(self, facts: Facts) -> str | None:
        """The first condition that does not hold, in words; None when all hold."""
        if self.model is not None and not any(fnmatchcase(facts.model, pattern) for pattern in self.model):
            return f"model {facts.model!r} is none of {list(self.model)}"
        if self.tenant is not None and not any(fnmatchcase(facts.tenant, pattern) for pattern in self.tenant):
            return f"tenant {facts.tenant!r} is none of {list(self.tenant)}"
        if self.workload is not None and facts.workload not in self.workload:
            return f"workload {facts.workload} is none of {[str(w) for w in self.workload]}"
        if self.max_temperature is not None:
            # An unstated temperature is the server's default, 1 in the OpenAI API.
            temperature = 1.0 if facts.temperature is None else facts.temperature
            if temperature > self.max_temperature:
                return f"temperature {temperature:g} is above {self.max_temperature:g}"
        return None


DraftLength = Annotated[int, Field(strict=True, ge=1, le=MAX_LOOKAHEAD)]


class Lookahead(_Strict):
    """A range of K; which K is used comes from evidence, `max` until there is any."""

    min: DraftLength = 1
    """Fewest draft tokens of a step."""
    max: DraftLength = 8
    """Most draft tokens of a step."""

    @model_validator(mode="after")
    def _ordered(self) -> Lookahead:
        if self.min > self.max:
            raise PydanticCustomError(
                "lookahead_order",
                "has min {low} above max {high}; swap them",
                {"low": self.min, "high": self.max},
            )
        return self


def _lookahead_shape(value: object) -> str:
    return "range" if isinstance(value, dict | Lookahead) else "number"


class Shadow(_Strict):
    """How much of shadow traffic is measured, and with which drafters beside the rule's own."""

    sample: Fraction = 1.0
    """Which share of the answers is replayed; the choice follows from the request's id."""
    max_tokens_per_minute: Count | Literal["unlimited"] = "unlimited"
    """Answer tokens that are replayed in a minute at most, by each process."""
    compare: tuple[Drafter, ...] = ()
    """Further drafters that each answer is replayed for, beside the rule's own."""


def _none_or_often(fraction: float) -> float:
    if 0 < fraction < LEAST_CONTROL:
        raise PydanticCustomError("control_fraction", f"0 for no control, or {LEAST_CONTROL:g} to 0.5")
    return fraction


class Control(_Strict):
    """What speculated requests are compared with: blocks of time, or another backend."""

    block: Seconds = 60.0
    """How long a block is: at least a second; seconds, or `60s`, `10m`, `2h`."""
    fraction: Annotated[Number, Field(ge=0, le=0.5), AfterValidator(_none_or_often)] = 0.1
    """Which share of the blocks is served plainly, for comparison; 0 gives no multiplier."""
    replica: Text | SkipJsonSchema[None] = None
    """A backend that serves every prod-eligible request plainly, instead of some blocks of each; for a second
    server of the same model, machine, version and flags."""

    @field_validator("replica", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return _not_left_empty(value)


class Prod(_Strict):
    """How prod traffic is driven."""

    executor: Literal["auto", "in_engine", "gateway_loop"] = "auto"
    """Who drives: the engine itself, or the gateway with a draft runner; `auto` takes the first possible."""
    share: Fraction = 1.0
    """Which share of the requests is speculated; the choice follows from the request's id."""
    control: Control = Control()
    """What speculated traffic is compared with."""


class Guardrails(_Strict):
    """What `gateway_loop` has to keep to, because it makes many calls of one request."""

    min_multiplier: Annotated[Number, Field(ge=0)] = 1.05
    """Smallest lower bound of the predicted multiplier. 0 asks for no prediction, so that what is not
    predicted to pay can be measured."""
    max_running: Count = 16
    """Most requests under way at a backend."""


class Defaults(_Strict):
    """What holds where a rule does not say, and for requests that no rule matches."""

    # Before `mode`, so that the check of `mode` can see it.
    experimental: StrictBool = False
    """Has to be true beside `mode: prod`."""
    mode: ModeWord = Mode.OFF
    """Pass through untouched, measure after the answer, or speculate."""
    draft: Literal["auto", "none", Drafter] = "auto"
    """What proposes tokens; `none` opts out."""
    lookahead: Annotated[
        Annotated[DraftLength, Tag("number")] | Annotated[Lookahead, Tag("range")],
        Discriminator(_lookahead_shape),
    ] = 5
    """Draft tokens of a step: a number, or a range whose `max` is used until evidence chooses."""
    shadow: Shadow = Shadow()
    """How mode shadow measures."""
    prod: Prod = Prod()
    """How mode prod is driven."""
    guardrails: Guardrails = Guardrails()
    """What `gateway_loop` has to keep to."""

    @field_validator("mode")
    @classmethod
    def _prod_is_asked_for_twice(cls, mode: Mode, info: ValidationInfo) -> Mode:
        # `experimental` is absent from `info.data` when it was refused itself.
        if mode is Mode.PROD and info.data.get("experimental") is False:
            raise PydanticCustomError(
                "prod_is_experimental",
                "is prod, which needs `experimental: true` beside it: speculation that stops paying is not "
                "taken back by itself yet, so somebody has to watch it",
            )
        return mode

    @property
    def k(self) -> int:
        """Draft tokens per step that are asked for."""
        return self.lookahead.max if isinstance(self.lookahead, Lookahead) else self.lookahead


class Rule(Defaults):
    """One line of a policy."""

    name: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """What records, metrics and overlays call the rule; no two have the same."""
    match: Match = Match()
    """Which requests it speaks for; without it, all."""


class Policy(_Strict):
    """An ordered list of rules; the first that matches decides, `defaults` otherwise."""

    # A top-level key that starts with x- is a free place for YAML anchors; loading drops it.
    model_config = ConfigDict(json_schema_extra={"patternProperties": {"^x-": {}}})

    version: Literal[1]
    """Of this format."""
    defaults: Defaults = Defaults()
    """What a rule takes over where it does not say, and what decides where no rule matches."""
    rules: tuple[Rule, ...] = ()
    """The first that matches a request decides."""

    @field_validator("version", mode="before")
    @classmethod
    def _one(cls, version: object) -> object:
        return no_look_alike(version)

    @cached_property
    def fallback(self) -> Rule:
        """`defaults` as the rule for requests that no rule matches."""
        return Rule(name="default", **dict(self.defaults))

    @cached_property
    def prod_rules(self) -> tuple[Rule, ...]:
        """The rules that speculate, `fallback` among them if it does."""
        return tuple(rule for rule in (*self.rules, self.fallback) if rule.mode is Mode.PROD)

    @cached_property
    def block_lengths(self) -> frozenset[float]:
        """Lengths of the blocks that control is randomised by, in seconds."""
        return frozenset(rule.prod.control.block for rule in self.prod_rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to happen to one request at one backend, and why.

    Attributes:
        action: Where the request goes.
        reason: Why it is not more than that; None for speculate and would_speculate.
        rule: The rule that decided; `default` when none matched.
        drafter: The chosen drafter's name; None without one.
        executor: Set for speculate and control.
        strategy: How the target is made to verify, for the executor that drives it from outside.
        detail: The reason as a sentence, with its numbers; None without a reason.
        k: Draft tokens per step.
        control: What its speed is compared with; set for speculate and control.
        compare: Further drafters that a shadow answer is replayed for.
        trail: One line per rule considered, in order.
    """

    mode: Mode
    action: Action
    rule: str
    reason: str | None = None
    drafter: str | None = None
    executor: str | None = None
    strategy: str | None = None
    detail: str | None = None
    k: int | None = None
    control: Control | None = None
    max_tokens_per_minute: int | None = None
    compare: tuple[str, ...] = ()
    trail: tuple[str, ...] = ()
