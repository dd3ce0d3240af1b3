"""Timing runs that take turns, so that a machine whose speed drifts treats them alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def taking_turns(rounds: int, *runs: Callable[[], object]) -> list[list[float]]:
    """Seconds of each run in each round; a first round warms up and is not counted."""
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, taken in zip(runs, seconds, strict=True):
            begun = time.perf_counter()
            run()
            if number > 0:
                taken.append(time.perf_counter() - begun)
    return seconds


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
