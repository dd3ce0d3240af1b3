"""How many tokens each rule may have replayed in any minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0


class TokenBudget:
    """A sliding window per rule, of which this process has its share.

    Args:
        clock: Monotonic seconds.
        workers: Processes that share each rule's limit, and know nothing of what the others have spent.
    """

    def __init__(self, clock: Callable[[], float], workers: int = 1) -> None:
        self._clock = clock
        self._workers = workers
        self._spent: dict[str, deque[tuple[float, int]]] = {}

    def spend(self, rule: str, tokens: int, limit: int | None) -> bool:
        """Take `tokens` from the rule's last minute if they fit; False, and nothing taken, if not."""
        if limit is None:
            return True
        now = self._clock()
        self._forget(now - WINDOW_S)
        spent = self._spent.setdefault(rule, deque())
        if sum(tokens for _, tokens in spent) + tokens > limit // self._workers:
            return False
        spent.append((now, tokens))
        return True

    def _forget(self, before: float) -> None:
        """Of all rules, since a policy that is loaded anew may name others each time."""
        for spent in self._spent.values():
            while spent and spent[0][0] <= before:
                spent.popleft()
        self._spent = {rule: spent for rule, spent in self._spent.items() if spent}
