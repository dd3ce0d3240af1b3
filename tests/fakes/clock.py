"""A clock that stands still until told otherwise."""

from __future__ import annotations


class FakeClock:
    """Unix time as tests want it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
