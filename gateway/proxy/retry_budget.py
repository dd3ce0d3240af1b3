"""How many requests may be tried again: a share of traffic, so that an outage is not multiplied."""

from __future__ import annotations


class RetryBudget:
    """A token bucket that every request fills a little and every retry empties by one.

    Args:
        share: Retries allowed per request, over time.
        burst: Retries allowed at once after a quiet time, and at the start.
    """

    def __init__(self, *, share: float = 0.1, burst: float = 10.0) -> None:
        self._share = share
        self._burst = burst
        self._left = burst

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._burst, self._left + self._share)

    def spend(self) -> bool:
        """Take one retry; False when there is none left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
