"""Propose, score, verify, commit: speculative decoding on one screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from draftrunner.model import DraftSession, Step
from draftrunner.verify import verify

Row_co = TypeVar("Row_co", covariant=True)
Row = TypeVar("Row")


class Target(Protocol[Row_co]):
    """A target model with a KV cache that can be cut."""

    def score(self, tokens: Sequence[int]) -> Sequence[Row_co]:
        """Feed `tokens`; row i holds the logits that follow `tokens[:i + 1]`."""
        ...

    def rewind(self, length: int) -> None:
        """Forget every cached position from `length` on."""
        ...


def step(
    *,
    target: Target[Row],
    context: list[int],
    session: DraftSession | None,
    k: int,
    choose: Callable[[Row, int], int],
    ends: Callable[[int], bool],
) -> Step:
    """Run one decode forward, append what it emitted to `context`, and say what happened.

    Args:
        target: Has every token of `context` cached but the last.
        context: Prompt and answer so far; extended in place.
        session: The drafter's state for this answer; None decodes plainly.
        k: Most draft tokens to verify in this forward.
        choose: `choose(row, position)` is the target's choice for the token at `position` of the
            context. It must depend on nothing else, so that drafts cannot influence it.
        ends: Called once for each emitted token, in order; True ends the answer with that token.
            Whatever the forward produced beyond it does not exist.
    """
    draft = session.propose(k) if session is not None and k > 0 else []
    rows = target.score([context[-1], *draft])
    start = len(context)
    verdict = verify(draft, lambda i: choose(rows[i], start + i))
    emitted: list[int] = []
    for token in verdict.tokens:
        emitted.append(token)
        if ends(token):
            break
    context.extend(emitted)
    target.rewind(len(context) - 1)
    if session is not None:
        session.extend(emitted)
    return Step(len(draft), min(verdict.accepted, len(emitted)), tuple(emitted))
