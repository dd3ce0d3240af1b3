"""Drafting that stays within the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from draftrunner.model import NOBODY, Drafter, DraftSession, Origin


class FittingDrafter:
    """Another drafter's proposals, cut where the model could not hold their tokens.

    The live loop and the replay of a shadow answer both draft through it, so that they count alike
    up to the context's very end.
    """

    def __init__(self, drafter: Drafter, context_length: int) -> None:
        self.name = drafter.name
        self.consistent = drafter.consistent
        self._drafter = drafter
        self._context_length = context_length

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        """Start drafting after `prompt`."""
        return _FittingSession(self._drafter.open(prompt, origin), self._context_length - len(prompt))

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """Hand the answer on."""
        self._drafter.learn(answer, origin)


class _FittingSession:
    def __init__(self, session: DraftSession, room: int) -> None:
        self._session = session
        self._room = room

    def propose(self, k: int) -> list[int]:
        return self._session.propose(min(k, self._room))

    def extend(self, tokens: Sequence[int]) -> None:
        self._session.extend(tokens)
        self._room -= len(tokens)

    def close(self) -> None:
        self._session.close()
