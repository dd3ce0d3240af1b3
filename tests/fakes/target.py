"""Targets without weights: a rule for each next token, and a cache that checks the loop's book-keeping."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from draftrunner.loop import step
from draftrunner.model import NOBODY, DraftSession, Origin, Step

Row = TypeVar("Row")
Logits = tuple[float, ...]


class CachedTarget(Generic[Row]):
    """Answers `rule(tokens so far)` for each token fed, from a cache that must fit the loop's context.

    Attributes:
        cache: The tokens whose keys and values are held.
        contexts: For each verification, the tokens that it continued from.
    """

    def __init__(self, rule: Callable[[tuple[int, ...]], Row], context: list[int]) -> None:
        self.contexts: list[tuple[int, ...]] = []
        self._rule = rule
        self._context = context
        self.cache = context[:-1]

    def score(self, tokens: Sequence[int]) -> list[Row]:
        assert [*self.cache, tokens[0]] == self._context, "all of the context is cached but its last token"
        self.contexts.append(tuple(self._context))
        rows = []
        for token in tokens:
            self.cache.append(token)
            rows.append(self._rule(tuple(self.cache)))
        return rows

    def rewind(self, length: int) -> None:
        assert 0 < length <= len(self.cache), "only what is cached can be forgotten"
        del self.cache[length:]


class ScriptedSession:
    """Drafts what `drafts` says for each answer length; nothing where it says nothing.

    Attributes:
        seen: The prompt and every token extended so far.
    """

    def __init__(self, prompt: Sequence[int], drafts: Mapping[int, Sequence[int]]) -> None:
        self.seen = list(prompt)
        self._prompt_length = len(prompt)
        self._drafts = drafts

    def propose(self, k: int) -> list[int]:
        return list(self._drafts.get(len(self.seen) - self._prompt_length, ()))[:k]

    def extend(self, tokens: Sequence[int]) -> None:
        self.seen.extend(tokens)

    def close(self) -> None:
        """Holds nothing."""


class GuessingDrafter:
    """Proposes the likeliest tokens by a rule, like a draft model that holds `context_length` tokens."""

    name = "guessing"
    consistent = True

    def __init__(self, rule: Callable[[tuple[int, ...]], Logits], context_length: int = 1000) -> None:
        self._rule = rule
        self._context_length = context_length

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        return _GuessingSession(self, prompt)

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        """Copies from no earlier answer."""

    def greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        tokens = (*prompt, *answer[:-1])
        lengths = range(len(prompt), min(len(tokens), self._context_length) + 1)
        return [self.guess(tokens[:length]) for length in lengths if answer]

    def room(self, length: int) -> int:
        return max(0, self._context_length + 1 - length)

    def guess(self, tokens: tuple[int, ...]) -> int:
        return greedy(self._rule(tokens), len(tokens))


class _GuessingSession:
    def __init__(self, drafter: GuessingDrafter, prompt: Sequence[int]) -> None:
        self._drafter = drafter
        self._context = tuple(prompt)

    def propose(self, k: int) -> list[int]:
        tokens = self._context
        for _ in range(min(k, self._drafter.room(len(tokens)))):
            tokens += (self._drafter.guess(tokens),)
        return list(tokens[len(self._context) :])

    def extend(self, tokens: Sequence[int]) -> None:
        self._context += tuple(tokens)

    def close(self) -> None:
        """Holds nothing."""


class Ending:
    """Ends an answer with its first stop id, or with its `most`-th token."""

    def __init__(self, *, most: int, stops: frozenset[int] = frozenset()) -> None:
        self.over = False
        self._left = most
        self._stops = stops

    def __call__(self, token: int) -> bool:
        assert not self.over, "nothing is emitted after the end"
        self._left -= 1
        self.over = token in self._stops or self._left == 0
        return self.over


def generate(
    rule: Callable[[tuple[int, ...]], Row],
    choose: Callable[[Row, int], int],
    prompt: Sequence[int],
    ending: Ending,
    *,
    session: DraftSession | None = None,
    k: int = 0,
) -> tuple[list[int], list[Step]]:
    """One answer the way an engine makes it: the first token from prefill, the others from the loop.

    `session` has been opened on the prompt.
    """
    first = choose(rule(tuple(prompt)), len(prompt))
    context = [*prompt, first]
    if session is not None:
        session.extend([first])
    ending(first)
    target = CachedTarget(rule, context)
    steps = []
    while not ending.over:
        steps.append(step(target=target, context=context, session=session, k=k, choose=choose, ends=ending))
    return context[len(prompt) :], steps


def scripted(prompt: Sequence[int], answer: Sequence[int]) -> Callable[[tuple[int, ...]], int]:
    """A rule that gives `answer` after `prompt`, whatever the tokens before are, and then 0 for ever."""

    def rule(tokens: tuple[int, ...]) -> int:
        position = len(tokens) - len(prompt)
        return answer[position] if position < len(answer) else 0

    return rule


def own_choice(row: int, position: int) -> int:
    """For rules that give a token and leave nothing to choose."""
    return row


def markov(seed: int, *, order: int, vocabulary: int) -> Callable[[tuple[int, ...]], Logits]:
    """A rule whose logits depend on the last `order` tokens alone, so that its answers repeat themselves."""

    @functools.cache
    def logits(last: tuple[int, ...]) -> Logits:
        draw = random.Random(f"{seed} {last}")
        return tuple(draw.uniform(0, 4) for _ in range(vocabulary))

    return lambda tokens: logits(tokens[-order:])


def greedy(logits: Logits, position: int) -> int:
    """The likeliest token."""
    return max(range(len(logits)), key=logits.__getitem__)


def keyed_sampler(seed: int, temperature: float) -> Callable[[Logits, int], int]:
    """Samples with Gumbel noise that depends on (seed, position) alone."""

    @functools.cache
    def noise(position: int, vocabulary: int) -> Logits:
        draw = random.Random(f"{seed} {position}")
        return tuple(-math.log(-math.log(draw.uniform(1e-9, 1 - 1e-9))) for _ in range(vocabulary))

    def choose(logits: Logits, position: int) -> int:
        gumbel = noise(position, len(logits))
        return greedy(tuple(x / temperature + g for x, g in zip(logits, gumbel, strict=True)), position)

    return choose
