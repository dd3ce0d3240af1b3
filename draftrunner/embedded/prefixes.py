"""Prompt prefixes whose keys and values are kept, so that calls sharing one need not compute it again.

A prompt is always computed in chunks of the same length, counted from its start, and only whole
chunks are shared. So a reused position was computed by the very forward that would compute it now:
an answer does not depend, not in its last bit, on what was asked before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from draftrunner.embedded.kv import KvCache

CHUNK = 128
"""Positions per prefill forward. Shorter ones cost more per token, longer ones are shared less often."""


class PrefixStore:
    """The most recently used prompt prefixes, up to a total length."""

    def __init__(self, *, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._kept: OrderedDict[tuple[int, ...], KvCache] = OrderedDict()

    def find(self, prompt: Sequence[int]) -> KvCache | None:
        """Return a copy of the longest known prefix of `prompt`, at least one token short; None if none."""
        ids = tuple(prompt)
        longest = max(self._kept, key=lambda kept: _shared(kept, ids), default=())
        shared = _shared(longest, ids)
        if shared == 0:
            return None
        self._kept.move_to_end(longest)
        return self._kept[longest].fork(shared, capacity=2 * len(ids))

    def keep(self, prompt: Sequence[int], cache: KvCache) -> None:
        """Remember the whole chunks of `prompt`, as far as there is room; `cache` holds all of them."""
        most = min(len(prompt), self._most_tokens)
        ids = tuple(prompt[: most // CHUNK * CHUNK])
        if not ids:
            return
        if covering := next((kept for kept in self._kept if kept[: len(ids)] == ids), None):
            self._kept.move_to_end(covering)
            return
        for shorter in [kept for kept in self._kept if ids[: len(kept)] == kept]:
            del self._kept[shorter]
        self._kept[ids] = cache.fork(len(ids), capacity=len(ids))
        while sum(map(len, self._kept)) > self._most_tokens:
            self._kept.popitem(last=False)


def _shared(kept: tuple[int, ...], prompt: tuple[int, ...]) -> int:
    """Length of the whole chunks at the start of both that leave a token of `prompt` to compute."""
    end = 0
    while end + CHUNK < len(prompt) and kept[end : end + CHUNK] == prompt[end : end + CHUNK]:
        end += CHUNK
    return end
