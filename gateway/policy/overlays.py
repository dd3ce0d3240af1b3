"""Overlays: what takes speculation away beside the policy: kills, demotions, a smaller K. Frozen and pure.

An overlay never edits the policy and never adds to it. It says who put it there and why, and ends when it is
lifted or expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase

from gateway.policy.model import MAX_LOOKAHEAD, Facts, Lookahead, Mode, Rule

KILLED = "killed"
"""The reason of whatever a kill has stopped, in records and metrics."""

UNREAD = "overlays_unread"
"""The reason while the overlays have not been read since the start: there may be a kill among them."""

DEMOTIONS = (Mode.SHADOW, Mode.OFF)
"""What a rule may be demoted to."""


class OverlayKind(StrEnum):
    """What an overlay does."""

    KILL = "kill"
    """Nothing is speculated or replayed."""
    DEMOTE = "demote"
    """A rule's mode is a lower one."""
    LOOKAHEAD = "lookahead"
    """A rule drafts fewer tokens per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What an overlay may speak of: a request at a backend, and the rule that decides about it."""

    tenant: str
    model: str
    backend: str
    rule: str

    @classmethod
    def of(cls, facts: Facts, backend: str, rule: str) -> Subject:
        """A request with these `facts`."""
        return cls(tenant=facts.tenant, model=facts.model, backend=backend, rule=rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which subjects an overlay holds for; an absent condition holds for all, a pattern may use `*`."""

    tenant: str | None = None
    model: str | None = None
    backend: str | None = None
    rule: str | None = None

    def covers(self, subject: Subject) -> bool:
        """Whether every condition holds for `subject`."""
        return (
            _is(self.tenant, subject.tenant)
            and _is(self.model, subject.model)
            and _is(self.backend, subject.backend)
            and _is(self.rule, subject.rule)
        )

    def __str__(self) -> str:
        named = (f"{name} {value}" for name in _CONDITIONS if (value := getattr(self, name)) is not None)
        return ", ".join(named) or "everything"


_CONDITIONS = ("tenant", "model", "backend", "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """One overlay, in force or not.

    Attributes:
        value: A demotion's mode, or a lookahead's K; None for a kill.
        author: Who put it there, in their own words.
        created_at: Unix time.
        expires_at: Unix time; None for one that holds until it is lifted.
        lifted_at: Unix time; None while nobody has lifted it.
    """

    id: str
    kind: OverlayKind
    scope: Scope = field(default_factory=Scope)
    value: Mode | int | None = None
    author: str
    reason: str
    created_at: float
    expires_at: float | None = None
    lifted_at: float | None = None
    lifted_by: str | None = None

    def __post_init__(self) -> None:
        if why := _why_not_allowed(self):
            raise ValueError(why)

    @property
    def mode(self) -> Mode:
        """What a demotion leaves of a rule."""
        return Mode(str(self.value))

    @property
    def k(self) -> int:
        """What a lookahead asks for."""
        return int(self.value or 0)

    def holds(self, at: float) -> bool:
        """Whether it is in force at Unix time `at`."""
        return self.lifted_at is None and (self.expires_at is None or at < self.expires_at)

    def __str__(self) -> str:
        what = self.kind if self.value is None else f"{self.kind} to {self.value}"
        until = "" if self.expires_at is None else f", until {_time(self.expires_at)}"
        return f"{what} of {self.scope} ({self.id}, by {self.author}{until}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why nothing may be speculated or replayed.

    Attributes:
        reason: The word that records carry.
        why: The same as a sentence, with who said so.
    """

    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class Overlays:
    """All that are known at one moment.

    Attributes:
        known: In no order. Those that no longer hold may be among them.
        read: Whether the store's have been read since the start. While they have not, everything stops: a
            kill among them must survive a restart.
    """

    known: tuple[Overlay, ...] = ()
    read: bool = True

    def stop(self, subject: Subject, at: float) -> Stop | None:
        """What stops `subject` at Unix time `at`; None when nothing does."""
        kill = next(self._holding(OverlayKind.KILL, subject, at), None)
        if kill is not None:
            return Stop(KILLED, str(kill))
        if not self.read:
            return Stop(UNREAD, "the overlays have not been read from the store since the gateway started")
        return None

    def narrowed(self, rule: Rule, subject: Subject, at: float) -> tuple[Rule, tuple[Overlay, ...]]:
        """`rule` as demotions and lookaheads leave it for `subject` at `at`, and those that changed it."""
        changed_by: list[Overlay] = []
        if demotion := self._demotion(rule, subject, at):
            rule = rule.model_copy(update={"mode": demotion.mode})
            changed_by.append(demotion)
        if shorter := self._lookahead(rule, subject, at):
            rule = rule.model_copy(update={"lookahead": _fitted(shorter.k, rule)})
            changed_by.append(shorter)
        return rule, tuple(changed_by)

    def ks(self, rule: Rule) -> frozenset[int]:
        """Every K that `rule` may come to for some subject."""
        lookaheads = (one for one in self.known if one.kind is OverlayKind.LOOKAHEAD)
        return frozenset({rule.k, *(_fitted(one.k, rule) for one in lookaheads)})

    def kills(self, at: float) -> tuple[Overlay, ...]:
        """The kills in force at `at`."""
        return tuple(one for one in self.known if one.kind is OverlayKind.KILL and one.holds(at))

    def _demotion(self, rule: Rule, subject: Subject, at: float) -> Overlay | None:
        """The one that leaves least, if that is less than the rule asks for."""
        found = self._holding(OverlayKind.DEMOTE, subject, at)
        lowest = min(found, key=lambda one: _RANK[one.mode], default=None)
        return lowest if lowest and _RANK[lowest.mode] < _RANK[rule.mode] else None

    def _lookahead(self, rule: Rule, subject: Subject, at: float) -> Overlay | None:
        """The latest, if it changes the rule's K."""
        found = self._holding(OverlayKind.LOOKAHEAD, subject, at)
        latest = max(found, key=lambda one: one.created_at, default=None)
        return latest if latest and _fitted(latest.k, rule) != rule.k else None

    def _holding(self, kind: OverlayKind, subject: Subject, at: float) -> Iterator[Overlay]:
        return (one for one in self.known if one.kind is kind and one.holds(at) and one.scope.covers(subject))


NO_OVERLAYS = Overlays()


def joined(stored: Sequence[Overlay] | None, switched: Iterable[Overlay]) -> Overlays:
    """The store's overlays, None while they are unread, with the kills of the file switch."""
    return Overlays((*switched, *(stored or ())), read=stored is not None)


_RANK = {Mode.OFF: 0, Mode.SHADOW: 1, Mode.PROD: 2}


def _fitted(k: int, rule: Rule) -> int:
    """K within what the rule allows: inside its range, or no more than its number."""
    if isinstance(rule.lookahead, Lookahead):
        return min(max(k, rule.lookahead.min), rule.lookahead.max)
    return min(k, rule.lookahead)


def _is(wanted: str | None, name: str) -> bool:
    # Equal first: a name may itself hold characters that a pattern gives a meaning.
    return wanted is None or wanted == name or fnmatchcase(name, wanted)


def _why_not_allowed(overlay: Overlay) -> str | None:
    if overlay.kind is OverlayKind.KILL:
        fits = overlay.value is None and overlay.scope.rule is None
        return None if fits else "a kill has no value, and speaks of tenants, models and backends only"
    if overlay.scope.rule is None:
        return f"a {overlay.kind} names the rule that it speaks of"
    if overlay.kind is OverlayKind.DEMOTE:
        return None if overlay.value in DEMOTIONS else "the value of a demote is shadow or off"
    fits = type(overlay.value) is int and 1 <= overlay.value <= MAX_LOOKAHEAD
    return None if fits else f"the value of a lookahead is a whole number from 1 to {MAX_LOOKAHEAD}"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
