"""N-gram drafting by prompt lookup (Saxena 2023; vLLM's `ngram` method).

The longest suffix of the context, from `max_n` down to `min_n` tokens, that has occurred before
is found, and the tokens that followed that occurrence are proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftrunner.model import NOBODY, DraftSession, Origin, Profile


class NgramDrafter:
    """Copies what followed the longest earlier occurrence of the context's suffix."""

    name = "ngram"
    consistent = True

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:  # noqa: ARG002 - a contract
        """Index `prompt`, with at most `max_n` look-ups per token."""
        session = _NgramSession(self._profile)
        session.extend(prompt)
        return session

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """Nothing: only the request's own context is copied from."""


class _NgramSession:
    """Keeps where each n-gram's continuation starts: at most `max_n` look-ups per token and proposal."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._context: list[int] = []
        self._continuations: dict[tuple[int, ...], int] = {}

    def propose(self, k: int) -> list[int]:
        draft = self._copied(k)
        if self._profile.pad_to_k and self._context:
            draft += [self._context[-1]] * (k - len(draft))
        return draft

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._index_suffixes()
            self._context.append(token)

    def close(self) -> None:
        """Nothing is held."""

    def _index_suffixes(self) -> None:
        """Every n-gram that ends the context now has a continuation: the next token's place.

        Only then is it indexed, so that a suffix never matches itself.
        """
        end = len(self._context)
        for n in range(self._profile.min_n, min(self._profile.max_n, end) + 1):
            gram = tuple(self._context[end - n : end])
            if self._profile.tie == "latest":
                self._continuations[gram] = end
            else:
                self._continuations.setdefault(gram, end)

    def _copied(self, k: int) -> list[int]:
        end = len(self._context)
        for n in range(min(self._profile.max_n, end), self._profile.min_n - 1, -1):
            start = self._continuations.get(tuple(self._context[end - n : end]))
            if start is not None:
                return self._context[start : start + k]
        return []
