"""Scoring a draft that somebody else made: the target's own choice at each of its positions."""

from __future__ import annotations

from collections.abc import Callable

from draftrunner.embedded.generation import Ask, Emission, Finish, Times
from draftrunner.embedded.kv import KvCache
from draftrunner.embedded.prefixes import CHUNK
from draftrunner.embedded.sampling import Sampler
from draftrunner.embedded.target import CachedTarget
from draftrunner.embedded.text import AnswerText


class Scoring:
    """Scores the draft at the end of one prompt: one forward, once what stands before it is computed.

    The choices are those that plain decoding would make: with the same seed, the very same.

    Args:
        ask: Its `draft_length` is set, and it may emit one token.
        target: Holds the first tokens before the draft already, at least one short of all.
        grown: Whether they come from an earlier scoring, and not from a prompt's beginning.
        text: Receives the last choice, which is the answer's one token.
        asked: When the request arrived.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        target: CachedTarget,
        grown: bool,
        text: AnswerText,
        asked: float,
        clock: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._context_length = len(ask.prompt) - (ask.draft_length or 0)
        self._target = target
        self._grown = grown
        self._text = text
        self._clock = clock
        self._cached_tokens = target.cache.length
        self._asked = asked
        self._begun = clock()

    @property
    def prefilling(self) -> bool:
        """Whether a prompt is computed just as if it were to be answered, so that others may share it."""
        return not self._grown and self._ask.draft_length == 0

    @property
    def cache(self) -> KvCache:
        """The keys and values computed so far."""
        return self._target.cache

    def advance(self) -> Emission | None:
        """Run one forward. Returns None while what stands before the draft is not wholly computed."""
        done = self._target.cache.length
        if self._context_length - done > CHUNK:
            self._target.prefill(self._ask.prompt[done : done + CHUNK])
            return None
        rows = self._target.last_rows(
            self._ask.prompt[done:], len(self._ask.prompt) - self._context_length + 1
        )
        sampler = Sampler(self._ask.sampling)
        return self._emission(
            tuple(sampler.choose(row, self._context_length + place) for place, row in enumerate(rows))
        )

    def _emission(self, choices: tuple[int, ...]) -> Emission:
        ended = choices[-1] in self._ask.end_ids
        if not ended:
            self._text.push(choices[-1])
        self._text.finish()
        now = self._clock()
        finish = Finish(
            reason="stop" if ended else "length",
            stop=None,
            cached_tokens=self._cached_tokens,
            steps=(),
            times=Times(asked=self._asked, begun=self._begun, first_token=now, last_token=now),
        )
        return Emission(
            token_ids=choices[-1:], text=self._text.take(), logprobs=(), finish=finish, choices=choices
        )
