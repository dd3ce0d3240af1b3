"""The loop for a target that somebody else calls: one answer, pass after pass, until it ends.

What runs is `draftrunner.loop.step` itself. A row of this target is the target's own choice, so that
nothing is left to choose, and what is emitted is what the target alone would have emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftrunner.loop import step
from draftrunner.model import DraftSession, Step

PASSES_BEFORE_JUDGED = 8
SECONDS_BEFORE_JUDGED = 0.5
"""An answer younger than either is never called slow: a single late pass says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The answer to draft for.

    Attributes:
        prompt: Token ids of the target; at least one.
        k: Most draft tokens per pass.
        max_tokens: Most tokens that the answer may have; at least one.
        plain_seconds_per_token: What plain decoding takes; None when it is not known.
    """

    prompt: Sequence[int]
    k: int
    max_tokens: int
    plain_seconds_per_token: float | None


@dataclass(frozen=True, slots=True)
class Choices:
    """What the target itself chose after the context, and after each draft token.

    Attributes:
        ids: One more than there were draft tokens.
        ends: For each, whether the answer ends with it.
    """

    ids: Sequence[int]
    ends: Sequence[bool]


class AnswerOver(Exception):
    """Whoever calls the target has ended the answer.

    Attributes:
        tokens: How many of the emitted tokens belong to it.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the answer is over after {tokens} tokens")
        self.tokens = tokens


class Line(Protocol):
    """The connection to whoever calls the target. Both methods block."""

    def verify(self, done: Step | None, draft: Sequence[int]) -> Choices:
        """Tell what the last pass emitted (None before the first) and what to score; return the choices.

        Raises:
            AnswerOver: There is nothing left to score.
        """
        ...

    def finish(self, done: Step, *, slower_than_plain: bool) -> int:
        """Tell what the last pass of all emitted, and why it is the last if the answer goes on without it.

        Returns how many tokens the answer has in the end.
        """
        ...


class RemoteTarget:
    """A `loop.Target` at the other end of a line.

    Attributes:
        left: How many tokens the answer may still have.
        over: Whether the last token emitted ended the answer.
    """

    def __init__(self, line: Line, max_tokens: int) -> None:
        self.left = max_tokens
        self.over = False
        self._line = line
        self._done: Step | None = None
        self._ends: Iterator[bool] = iter(())

    def score(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the target's choices after the context, which ends in `tokens[0]`, and after each draft."""
        choices = self._line.verify(self._done, tokens[1:])
        self._ends = iter(choices.ends)
        return choices.ids

    def rewind(self, length: int) -> None:
        """Nothing: what the target keeps of a context is its own affair."""

    def ends(self, token: int) -> bool:  # noqa: ARG002 - a contract; the target said for each choice in order
        """Take the next emitted token; True if the answer ends with it."""
        self.left -= 1
        self.over = next(self._ends) or self.left == 0
        return self.over

    def advance(self, context: list[int], session: DraftSession, k: int) -> Step:
        """Run one pass with at most `k` drafts, none of which could come after the last token allowed."""
        self._done = step(
            target=self,
            context=context,
            session=session,
            k=min(k, self.left - 1),
            choose=_already_chosen,
            ends=self.ends,
        )
        return self._done


def draft_answer(task: Task, session: DraftSession, line: Line, clock: Callable[[], float]) -> list[int]:
    """Draft for one answer until it ends, or until plain decoding would be faster.

    Args:
        task: What to draft for.
        session: Has been opened on the task's prompt; its owner closes it.
        line: Leads to the target. What it raises goes on to the caller, but for AnswerOver.
        clock: Seconds, monotonic.

    Returns:
        The answer's tokens, as far as they were emitted here.
    """
    context = list(task.prompt)
    try:
        length = _run(task, context, session, line, clock)
    except AnswerOver as over:
        length = over.tokens
    return context[len(task.prompt) :][:length]


def _run(
    task: Task, context: list[int], session: DraftSession, line: Line, clock: Callable[[], float]
) -> int:
    target = RemoteTarget(line, task.max_tokens)
    done = target.advance(context, session, k=0)  # the target's prefill
    pace = _Pace(task.plain_seconds_per_token, clock)
    while not target.over:
        if pace.slower_than_plain:
            return line.finish(done, slower_than_plain=True)
        done = target.advance(context, session, task.k)
        pace.add(done)
    return line.finish(done, slower_than_plain=False)


class _Pace:
    """How fast tokens come after an answer's first, beside what plain decoding takes."""

    def __init__(self, plain_seconds_per_token: float | None, clock: Callable[[], float]) -> None:
        self._plain_seconds_per_token = plain_seconds_per_token
        self._clock = clock
        self._begun = clock()
        self._passes = self._tokens = 0

    def add(self, done: Step) -> None:
        self._passes += 1
        self._tokens += len(done.tokens)

    @property
    def slower_than_plain(self) -> bool:
        if self._plain_seconds_per_token is None or self._passes < PASSES_BEFORE_JUDGED:
            return False
        seconds = self._clock() - self._begun
        return seconds >= max(SECONDS_BEFORE_JUDGED, self._tokens * self._plain_seconds_per_token)


def _already_chosen(row: int, position: int) -> int:  # noqa: ARG001 - a contract
    return row
