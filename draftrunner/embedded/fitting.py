"""Drafting that stays within the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from draftrunner.model import NOBODY, Drafter, DraftSession, Origin, TeacherForced


def fitting(drafter: Drafter, context_length: int) -> Drafter:
    """Make `drafter` propose no more than what a model of `context_length` tokens can hold.

    The live loop and the replay of a shadow answer both draft through it, so that they count alike
    up to the context's very end.
    """
    if isinstance(drafter, TeacherForced):
        return _FittingTeacherForced(drafter, context_length)
    return _FittingDrafter(drafter, context_length)


class _FittingDrafter:
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


class _FittingTeacherForced(_FittingDrafter):
    def __init__(self, drafter: TeacherForced, context_length: int) -> None:
        super().__init__(drafter, context_length)
        self._guesser = drafter

    def greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> Sequence[int]:
        """The drafter's own; the answer fits the context."""
        return self._guesser.greedy(prompt, answer)

    def room(self, length: int) -> int:
        """What both the drafter and the model have room for."""
        return min(self._guesser.room(length), self._context_length - length)


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
