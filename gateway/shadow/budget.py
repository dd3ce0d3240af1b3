"""How many tokens each rule may have replayed in any minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0


class TokenBudget:
    """A sliding window per rule.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[str, deque[tuple[float, int]]] = {}

    def spend(self, rule: str, tokens: int, limit: int | None) -> bool:
        """Take `tokens` from the rule's last minute if they fit; False, and nothing taken, if not."""
        if limit is None:
            return True
        now = self._clock()
        spent = self._spent.setdefault(rule, deque())
        while spent and spent[0][0] <= now - WINDOW_S:
            spent.popleft()
        if sum(tokens for _, tokens in spent) + tokens > limit:
            return False
        spent.append((now, tokens))
        return True
