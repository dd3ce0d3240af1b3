"""One answer being generated: its prompt in chunks, then one `loop.step` after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from draftrunner.embedded.kv import KvCache
from draftrunner.embedded.prefixes import CHUNK
from draftrunner.embedded.sampling import Row, Sampler, Sampling, TokenLogprob, token_logprob
from draftrunner.embedded.target import CachedTarget
from draftrunner.embedded.text import AnswerText
from draftrunner.loop import step
from draftrunner.model import NOBODY, DraftSession, Origin, Step


class Mode(StrEnum):
    """What a request's `ace_mode` may say."""

    OFF = "off"
    SHADOW = "shadow"
    PROD = "prod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one prompt asks of the engine.

    Attributes:
        prompt: Token ids; at least one, and fewer than the context holds.
        max_tokens: Most tokens to generate; prompt and answer fit into the context together.
        sampling: How tokens are chosen.
        stop_strings: Texts that end the answer and are not part of it.
        end_ids: The model's end-of-sequence tokens; empty to ignore them.
        stop_ids: Further tokens that end the answer. Like those, they belong to its ids, not its text.
        alternatives: How many likely alternatives to report with each token's log-probability;
            None reports neither.
        mode: Whether to speculate. Shadow is generated like off.
        k: Most draft tokens per step.
        draft_length: How many of the prompt's last ids are a draft to be scored; fewer than it has.
            None for a prompt to be answered.
        drafter: What drafts; one of the engine's.
        origin: Whose answer it is, and when it was asked for.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop_strings: tuple[str, ...] = ()
    end_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    alternatives: int | None = None
    mode: Mode = Mode.OFF
    k: int = 0
    draft_length: int | None = None
    drafter: str = "ngram"
    origin: Origin = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Moments of one answer, in seconds of the engine's clock."""

    asked: float
    begun: float
    first_token: float
    last_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How an answer ended, and what it took.

    Attributes:
        reason: OpenAI's word: `stop` or `length`.
        stop: The stop string or stop id that ended it; None for an end-of-sequence.
        cached_tokens: Prompt tokens whose keys and values were reused.
        steps: Every decode forward in order, those without drafts included.
        times: When what happened.
    """

    reason: str
    stop: str | int | None
    cached_tokens: int
    steps: tuple[Step, ...]
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What one forward added to an answer.

    Attributes:
        token_ids: At least one.
        text: What is now safe to show; may be empty.
        logprobs: One for each token if asked for, else empty.
        finish: Set on the last emission.
        choices: Of a scored draft, the target's choice before it and after each of its tokens; else empty.
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish: Finish | None
    choices: tuple[int, ...] = ()


class Ending:
    """Takes an answer's tokens in order and knows when it is over."""

    def __init__(self, ask: Ask, text: AnswerText) -> None:
        self._ask = ask
        self._text = text
        self._tokens = 0
        self.reason: str | None = None
        self.stop: str | int | None = None

    def __call__(self, token: int) -> bool:
        """Take `token`; True if the answer ends with it."""
        self._tokens += 1
        if token in self._ask.end_ids:
            self.reason = "stop"
        elif token in self._ask.stop_ids:
            self.reason, self.stop = "stop", token
        elif matched := self._text.push(token):
            self.reason, self.stop = "stop", matched
        elif self._tokens == self._ask.max_tokens:
            self.reason = "length"
        if self.reason is None:
            return False
        self._text.finish()
        return True


class Generation:
    """Generates one answer, one forward at a time.

    Args:
        ask: What to generate.
        target: Holds the first tokens of the prompt already, possibly none of them.
        session: The drafter's state after the prompt; None decodes plainly.
        text: Receives the tokens.
        asked: When the request arrived.
        clock: Seconds, monotonic.
        observe_pass: Told of each decode forward, and of its seconds from proposing to committing.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        target: CachedTarget,
        session: DraftSession | None,
        text: AnswerText,
        asked: float,
        clock: Callable[[], float],
        observe_pass: Callable[[Step, float], None],
    ) -> None:
        self._ask = ask
        self._target = target
        self._session = session
        self._text = text
        self._clock = clock
        self._observe_pass = observe_pass
        self._sampler = Sampler(ask.sampling)
        self._ending = Ending(ask, text)
        self._context = list(ask.prompt)
        self._logprobs: list[TokenLogprob] = []
        self._steps: list[Step] = []
        self._cached_tokens = target.cache.length
        self._asked = asked
        self._begun = clock()
        self._first_token = self._begun

    @property
    def prefilling(self) -> bool:
        """Whether some of the prompt has still to be computed."""
        return self._target.cache.length < len(self._ask.prompt)

    @property
    def cache(self) -> KvCache:
        """The keys and values computed so far."""
        return self._target.cache

    def decode_plainly(self) -> None:
        """Ask the drafter no more."""
        self._session = None

    def advance(self) -> Emission | None:
        """Run one forward. Returns None while the prompt is not wholly computed."""
        return self._prefill() if self.prefilling else self._decode()

    def _prefill(self) -> Emission | None:
        done = self._target.cache.length
        row = self._target.prefill(self._ask.prompt[done : done + CHUNK])
        if self.prefilling:
            return None
        token = self._choose(row, len(self._context))
        self._context.append(token)
        if self._session is not None:
            self._session.extend([token])
        self._ending(token)
        self._first_token = self._clock()
        return self._emission((token,))

    def _decode(self) -> Emission:
        begun = self._clock()
        done = step(
            target=self._target,
            context=self._context,
            session=self._session,
            k=self._ask.k,
            choose=self._choose,
            ends=self._ending,
        )
        self._observe_pass(done, self._clock() - begun)
        self._steps.append(done)
        return self._emission(done.tokens)

    def _choose(self, row: Row, position: int) -> int:
        token = self._sampler.choose(row, position)
        if self._ask.alternatives is not None:
            self._logprobs.append(token_logprob(row, token, self._ask.alternatives))
        return token

    def _emission(self, tokens: tuple[int, ...]) -> Emission:
        # Tokens were chosen in order, and those chosen beyond the end are not part of the answer.
        logprobs = tuple(self._logprobs[: len(tokens)])
        self._logprobs.clear()
        return Emission(token_ids=tokens, text=self._text.take(), logprobs=logprobs, finish=self._finish())

    def _finish(self) -> Finish | None:
        if self._ending.reason is None:
            return None
        times = Times(
            asked=self._asked, begun=self._begun, first_token=self._first_token, last_token=self._clock()
        )
        return Finish(
            reason=self._ending.reason,
            stop=self._ending.stop,
            cached_tokens=self._cached_tokens,
            steps=tuple(self._steps),
            times=times,
        )
