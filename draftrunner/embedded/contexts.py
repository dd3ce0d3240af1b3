"""The contexts of answers that grow by one scored draft after another, with their keys and values.

Where a prompt's prefix is shared and copied, such a context has one owner that comes back within
milliseconds, a few tokens longer. So it is handed over and taken back, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftrunner.embedded.kv import KvCache


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What one call left behind.

    Attributes:
        ids: Every token whose keys and values `cache` holds: a context, then the draft scored after it.
        context_length: Where the draft begins.
        cache: Nobody else writes to it.
    """

    ids: tuple[int, ...]
    context_length: int
    cache: KvCache

    def grows_into(self, context: tuple[int, ...]) -> bool:
        """Whether `context` is this one and at most what its scored draft may have emitted."""
        added = len(context) - self.context_length
        most = len(self.ids) - self.context_length + 1
        return 0 <= added <= most and context[: self.context_length] == self.ids[: self.context_length]

    def shared(self, context: tuple[int, ...]) -> int:
        """How many positions serve for `context`, the last of which is always computed anew."""
        end = self.context_length
        while end < min(len(self.ids), len(context)) and self.ids[end] == context[end]:
            end += 1
        return min(end, len(context) - 1)


class ContextStore:
    """The contexts scored last, up to a total length. Used by one thread."""

    def __init__(self, *, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._kept: list[_Kept] = []  # the one used last is the last

    def take(self, context: Sequence[int]) -> KvCache | None:
        """Hand over the keys and values that a kept context shares with `context`; None if none leads to it.

        They are at least one token short. The very same context is copied instead: a twin of this answer
        may still come back for it.
        """
        ids = tuple(context)
        leading = [kept for kept in self._kept if kept.grows_into(ids)]
        if not leading:
            return None
        found = max(leading, key=lambda kept: kept.context_length)
        if found.context_length == len(ids):
            return found.cache.fork(len(ids) - 1, capacity=2 * len(ids))
        self._kept.remove(found)
        found.cache.cut(found.shared(ids))
        return found.cache

    def keep(self, ids: Sequence[int], draft_length: int, cache: KvCache) -> None:
        """Take over `cache`, which holds `ids`, the last `draft_length` of them a draft; the oldest go."""
        self._kept.append(_Kept(tuple(ids), len(ids) - draft_length, cache))
        while sum(len(kept.ids) for kept in self._kept) > self._most_tokens:
            del self._kept[0]
