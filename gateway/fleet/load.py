"""How many requests each instance is serving: this process's own, and what its engine says of others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FRESH_S = 5.0
"""What an engine said longer ago says nothing about now."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What an engine computed for others than this process, at the latest look and at the one before."""

    latest: int
    before: int
    at: float

    @property
    def others(self) -> int:
        # An engine may count a request for a moment after its answer has ended here.
        return min(self.latest, self.before)


class Load:
    """Requests under way, by the instance's key.

    One that the gateway's loop drives is one, however many its calls.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._sequences: Counter[str] = Counter()
        self._heard: dict[str, _Heard] = {}

    def running(self, instance: str) -> int:
        """Requests that `instance` is serving: ours, and what its engine is known to compute for others."""
        heard = self._fresh(instance)
        return self._running[instance] + (heard.others if heard else 0)

    def source(self, instance: str) -> str:
        """Who says what is running: `engine` where its gauge is known, else `gateway`."""
        return "engine" if self._fresh(instance) else "gateway"

    def sequences(self, instance: str) -> int:
        """Sequences that `instance` computes for this process at most; an engine counts those."""
        return self._sequences[instance]

    def hear(self, instance: str, others: int) -> None:
        """Its engine was just computing so many sequences that are not ours."""
        known = self._fresh(instance)
        self._heard[instance] = _Heard(others, known.latest if known else others, self._clock())

    @contextmanager
    def beside(self, instance: str, sequences: int) -> Iterator[None]:
        """While entered, the engine computes so many sequences that are ours and no client's request."""
        _count(self._sequences, instance, sequences)
        try:
            yield
        finally:
            _count(self._sequences, instance, -sequences)

    def place(self) -> Place:
        """A place for one request, which is nowhere yet."""
        return Place(self)

    def come(self, instance: str, sequences: int) -> None:
        """A request has come to `instance`."""
        _count(self._running, instance, 1)
        _count(self._sequences, instance, sequences)

    def leave(self, instance: str, sequences: int) -> None:
        """A request that had come has ended."""
        _count(self._running, instance, -1)
        _count(self._sequences, instance, -sequences)

    def _fresh(self, instance: str) -> _Heard | None:
        heard = self._heard.get(instance)
        return heard if heard and self._clock() - heard.at < FRESH_S else None


class Place:
    """Where one request is being served. Made by `Load.place`.

    Args:
        load: The counts that it is part of.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._instance: str | None = None
        self._sequences = 0

    def among(self, instance: str) -> int:
        """How many requests `instance` would be serving, with this one."""
        return self._load.running(instance) + (self._instance != instance)

    def move(self, instance: str | None, *, sequences: int = 1) -> None:
        """It is served by `instance` from now on; None when it has ended.

        Args:
            instance: Where.
            sequences: How many sequences it may have the engine compute at once.
        """
        if self._instance is not None:
            self._load.leave(self._instance, self._sequences)
        if instance is not None:
            self._load.come(instance, sequences)
        self._instance, self._sequences = instance, sequences


def _count(counts: Counter[str], instance: str, by: int) -> None:
    counts[instance] += by
    if not counts[instance]:
        del counts[instance]
