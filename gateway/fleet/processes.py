"""Tells a server that was restarted from one URL at which several servers answer.

A restarted server shows a new process, and shows it for good. A load balancer before several servers shows
one process, another, and the first again; or, where servers do not say when they were started, counters that
go back more than once. What is measured through such a URL is nobody's: counters are unknown there, and a
loop's calls would meet servers that do not know its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.fleet.model import Process

CONSISTENT_LOOKS = 24
"""Looks in a row that show one process, after which a URL is taken for one again; two minutes of them."""

_MAX_SHOWN = 120
"""Characters of a series that evidence repeats."""

_NO_CLOCK_S = 2.0
"""A `created` that is the same after this is no clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one look showed of the process that answered.

    Attributes:
        created: Of its first model. Some servers say there when they were started, others what time it is.
        counters: Counters that do not go back while a process lives, by series.
    """

    process: Process = field(default_factory=Process)
    created: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)


class ProcessTrail:
    """The processes that the looks at one instance have shown.

    Args:
        process: The one that is known so far.
        several: Why the instance is taken for several processes already; empty where it is not.

    Attributes:
        process: The latest. While there are several, the last one before that was noticed.
        several: What showed that there are several; empty while there is one, as far as is known.
        replaced: Whether the latest look showed another process than the one before, to all appearance for
            good.
        says_start: Whether the latest look said when the process was started; `created` may be a constant.
    """

    def __init__(self, process: Process, several: str = "") -> None:
        self.process = process
        self.several = several
        self.replaced = False
        self.says_start = False
        self._latest = process
        self._look = 0
        self._calm = 0
        self._earlier: dict[Process, int] = {}
        self._went_back: list[int] = []
        self._counters: Mapping[str, float] = {}
        self._created: dict[float, float] = {}

    def follow(self, sighting: Sighting, at: float) -> None:
        """Take in a look that was answered.

        Args:
            sighting: What it showed.
            at: Unix time.
        """
        self._look += 1
        self.says_start = sighting.process.started_at is not None
        seen = self._named(sighting, at)
        another = seen.differs(self._latest)
        evidence = self._returned(seen) if another else self._gone_back(sighting)
        reset = not another and bool(self._went_back) and self._went_back[-1] == self._look
        if another:
            self._earlier[self._latest] = self._look - 1
        self._latest = seen if another else _joined(self._latest, seen)
        self._counters = sighting.counters or self._counters
        self._settle(evidence, another=another, reset=reset)

    def interrupt(self) -> None:
        """Take in that a look was not answered: a counter that starts anew after this is a restart."""
        self._counters = {}
        self._went_back.clear()

    def _settle(self, evidence: str, *, another: bool, reset: bool) -> None:
        was_several = bool(self.several)
        self.several = self.several or evidence
        self._calm = 0 if evidence or another else self._calm + 1
        if was_several and self._calm >= CONSISTENT_LOOKS:
            self.several = ""
            self._earlier.clear()
        self.replaced = not self.several and (was_several or another or reset)
        if not self.several:
            self.process = self._latest

    def _named(self, sighting: Sighting, at: float) -> Process:
        """The process, by the `created` of its model where it says nothing better and that is no clock."""
        created = sighting.created
        if created is None or sighting.process.started_at is not None:
            return sighting.process
        stands = at - self._created.setdefault(created, at) >= _NO_CLOCK_S
        while len(self._created) > CONSISTENT_LOOKS:
            del self._created[next(iter(self._created))]
        return replace(sighting.process, started_at=created) if stands else sighting.process

    def _returned(self, seen: Process) -> str:
        self._earlier = {old: look for old, look in self._earlier.items() if self._is_recent(look)}
        if any(_is_again(seen, old) for old in self._earlier):
            one, other = _told_apart_by(self._latest), _told_apart_by(seen)
            return f"the URL answers as one process ({one}) and another ({other}) in turns"
        return ""

    def _gone_back(self, sighting: Sighting) -> str:
        fell = [
            f"{series[:_MAX_SHOWN]} went from {self._counters[series]:g} to {value:g}"
            for series, value in sighting.counters.items()
            if value < self._counters.get(series, 0.0)
        ]
        if not fell:
            return ""
        self._went_back = [look for look in self._went_back if self._is_recent(look)]
        self._went_back.append(self._look)
        if sighting.process.started_at is not None:
            return f"the URL answers with counters of several processes: without a restart {fell[0]}"
        if len(self._went_back) > 1:
            return f"the URL answers with counters of several processes: again and again, {fell[0]}"
        return ""

    def _is_recent(self, look: int) -> bool:
        return self._look - look <= CONSISTENT_LOOKS


def _is_again(seen: Process, old: Process) -> bool:
    return seen.started_at == old.started_at if seen.started_at is not None else seen == old


def _told_apart_by(process: Process) -> Process:
    """Its start alone where that is known: behind a balancer the version may be another process's word."""
    return process if process.started_at is None else replace(process, version=None)


def _joined(known: Process, seen: Process) -> Process:
    """What is known of one process from two looks."""
    return Process(
        started_at=known.started_at if seen.started_at is None else seen.started_at,
        version=known.version if seen.version is None else seen.version,
    )
