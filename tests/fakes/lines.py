"""The other end of a remote loop without a network: whoever calls the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftrunner.model import Step
from draftrunner.remote_loop import AnswerOver, Choices


class TargetLine:
    """Asks `choose(tokens so far)` for each choice, as a gateway asks its backend.

    Args:
        choose: The target's own choice after a context.
        prompt: What the answer follows.
        stops: Tokens that end an answer.
        over_after: Says that the answer is over once it has this many tokens; None never does.

    Attributes:
        answer: What was emitted.
        drafts: What was to be scored, for each pass; the prefill is the first.
        steps: What each pass did.
        slower_than_plain: Whether the loop gave up; None while it runs.
    """

    def __init__(
        self,
        choose: Callable[[tuple[int, ...]], int],
        prompt: Sequence[int],
        *,
        stops: frozenset[int] = frozenset(),
        over_after: int | None = None,
    ) -> None:
        self.answer: list[int] = []
        self.drafts: list[list[int]] = []
        self.steps: list[Step] = []
        self.slower_than_plain: bool | None = None
        self._choose = choose
        self._prompt = tuple(prompt)
        self._stops = stops
        self._over_after = over_after

    def verify(self, done: Step | None, draft: Sequence[int]) -> Choices:
        if done is not None:
            self._take(done)
        if self._over_after is not None and len(self.answer) >= self._over_after:
            raise AnswerOver(self._over_after)
        self.drafts.append(list(draft))
        choices = self.choices((*self._prompt, *self.answer), draft)
        return Choices(choices, [token in self._stops for token in choices])

    def choices(self, context: tuple[int, ...], draft: Sequence[int]) -> list[int]:
        return [self._choose((*context, *draft[:i])) for i in range(len(draft) + 1)]

    def finish(self, done: Step, *, slower_than_plain: bool) -> int:
        self._take(done)
        self.slower_than_plain = slower_than_plain
        return len(self.answer)

    def _take(self, done: Step) -> None:
        self.steps.append(done)
        self.answer.extend(done.tokens)
