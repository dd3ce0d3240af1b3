"""Replay: scores a finished answer as if it had been speculated, for every K at once (design.md 8).

At each position the drafter proposes from the true context. A proposal made there is accepted exactly
as far as it agrees with the answer, because up to that point the drafter saw its own tokens. What one
live run would have counted is then a walk over these agreements. Where a drafter is consistent, one proposal
at each position answers for every K; where its proposals depend on K, each K's own passes are asked for.
The counting here shares nothing with `draftrunner.loop`: each is the other's test.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftrunner.model import NOBODY, Drafter, Origin, TeacherForced

UNKNOWN_ID = -1
"""Stands in an answer for a token that was emitted but whose id is not known. No draft equals it."""


class Abandoned(Exception):
    """Nobody waits for the replay any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a live run with lookahead `k` would have counted (design.md 9). Undefined rates are None.

    Attributes:
        k: Most draft tokens per pass.
        decode_tokens: Tokens that the passes emitted: the answer without its first token, which
            comes from prefill.
        passes: Decode forwards of the target.
        per_step_drafted: For each step (a pass that verified at least one draft), its draft tokens.
            The last step's count in full.
        per_step_accepted: For each step, the draft tokens that were emitted; never the correction
            or bonus token.
    """

    k: int
    decode_tokens: int
    passes: int
    per_step_drafted: tuple[int, ...]
    per_step_accepted: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Passes that verified at least one draft."""
        return len(self.per_step_drafted)

    @property
    def draft_tokens(self) -> int:
        """Proposed draft tokens, over all steps."""
        return sum(self.per_step_drafted)

    @property
    def accepted_tokens(self) -> int:
        """Accepted draft tokens, over all steps."""
        return sum(self.per_step_accepted)

    @property
    def accepted_by_position(self) -> tuple[int, ...]:
        """`k` entries; entry i counts the steps that accepted at least i+1 drafts."""
        return tuple(sum(accepted > i for accepted in self.per_step_accepted) for i in range(self.k))

    @property
    def passes_by_drafts(self) -> dict[int, int]:
        """How many passes verified how many drafts; plain passes stand under 0. No zero entries."""
        drafts_in_pass = [0] * (self.passes - self.steps) + list(self.per_step_drafted)
        return dict(sorted(Counter(drafts_in_pass).items()))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed draft tokens; None when nothing was proposed."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / steps; None without a step."""
        return 1 + self.accepted_tokens / self.steps if self.steps else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens that a pass emitted on average, so 1 for plain decoding; None without a pass."""
        return self.decode_tokens / self.passes if self.passes else None


class _Position(NamedTuple):
    """What a pass that starts at one position of the answer finds: of the drafted, how many agree with it."""

    drafted: int
    agreeing: int


def replay(
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    drafter: Drafter,
    ks: Iterable[int],
    origin: Origin = NOBODY,
    max_tokens: int | None = None,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> dict[int, Replayed]:
    """Score `answer_ids` as if it had been generated with each lookahead in `ks`.

    Exact for greedy and for sampled answers, given a drafter that keeps the promises of
    `draftrunner.model.DraftSession`. Teaches the drafter nothing.

    Args:
        prompt_ids: The prompt, as the target saw it.
        answer_ids: Every generated token, an end-of-sequence included; UNKNOWN_ID for a last one whose id
            is not known.
        drafter: Proposes from the target's token ids.
        ks: Lookaheads to answer for.
        origin: Whose answer it is, and when its request began.
        max_tokens: Most tokens that the answer could have had, for an engine that drafts none beyond them.
            None for one that does.
        is_abandoned: Asked before each position that is drafted for. The one pass of a TeacherForced drafter
            is not interrupted.

    Raises:
        Abandoned: Nobody waits for the counts any more.
    """
    lookaheads = sorted(set(ks))
    if not lookaheads:
        return {}
    if isinstance(drafter, TeacherForced):
        positions = _guessed(prompt_ids, answer_ids, drafter, lookaheads[-1], max_tokens)
    elif drafter.consistent:
        starts = _while_awaited(answer_ids, is_abandoned)
        positions = _proposed(prompt_ids, answer_ids, starts, drafter, lookaheads[-1], origin, max_tokens)
    else:
        starts = _while_awaited(answer_ids, is_abandoned)
        return _walked_together(prompt_ids, answer_ids, starts, drafter, lookaheads, origin, max_tokens)
    return {k: _walk(positions, k) for k in lookaheads}


def _while_awaited(answer_ids: Sequence[int], is_abandoned: Callable[[], bool]) -> Iterator[int]:
    """Every position at which a pass may start."""
    for start in range(1, len(answer_ids)):
        if is_abandoned():
            raise Abandoned
        yield start


def _guessed(
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    drafter: TeacherForced,
    k: int,
    max_tokens: int | None,
) -> list[_Position]:
    """From one pass: while its guesses agree with the answer they are what it would have proposed."""
    guesses = drafter.greedy(prompt_ids, answer_ids)
    positions: list[_Position] = []
    for start in range(1, len(answer_ids)):
        drafted = min(_most(k, start, max_tokens), drafter.room(len(prompt_ids) + start))
        end = start + drafted
        positions.append(_Position(drafted, _agreeing(guesses[start:end], answer_ids[start:end])))
    return positions


def _proposed(
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    starts: Iterable[int],
    drafter: Drafter,
    k: int,
    origin: Origin,
    max_tokens: int | None,
) -> list[_Position]:
    """From a proposal at every position."""
    positions: list[_Position] = []
    with contextlib.closing(drafter.open(prompt_ids, origin)) as session:
        for start in starts:
            session.extend(answer_ids[start - 1 : start])
            draft = session.propose(_most(k, start, max_tokens))
            positions.append(_position(draft, answer_ids, start))
    return positions


def _walked_together(
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    starts: Iterable[int],
    drafter: Drafter,
    lookaheads: Sequence[int],
    origin: Origin,
    max_tokens: int | None,
) -> dict[int, Replayed]:
    """Follow the runs of every lookahead along one session, each with the proposals of its own passes."""
    passes: dict[int, list[_Position]] = {k: [] for k in lookaheads}
    next_start = dict.fromkeys(lookaheads, 1)
    with contextlib.closing(drafter.open(prompt_ids, origin)) as session:
        for start in starts:
            session.extend(answer_ids[start - 1 : start])
            for k in [k for k in lookaheads if next_start[k] == start]:
                draft = session.propose(_most(k, start, max_tokens))
                passes[k].append(_position(draft, answer_ids, start))
                next_start[k] += passes[k][-1].agreeing + 1
    return {k: _counted(passes[k], k, max(len(answer_ids) - 1, 0)) for k in lookaheads}


def _most(k: int, start: int, max_tokens: int | None) -> int:
    """Most drafts of a pass that starts at `start`, whose last token is none of them."""
    return k if max_tokens is None else min(k, max_tokens - start - 1)


def _position(draft: Sequence[int], answer_ids: Sequence[int], start: int) -> _Position:
    return _Position(len(draft), _agreeing(draft, answer_ids[start : start + len(draft)]))


def _agreeing(draft: Sequence[int], answer: Sequence[int]) -> int:
    """Length of the longest common prefix; it ends with the answer."""
    for length, (proposed, actual) in enumerate(zip(draft, answer, strict=False)):
        if proposed != actual or actual == UNKNOWN_ID:
            return length
    return min(len(draft), len(answer))


def _walk(positions: Sequence[_Position], k: int) -> Replayed:
    """Follow one run: each pass emits what it accepted and one token more, as far as the answer goes."""
    passes: list[_Position] = []
    start = 0
    while start < len(positions):
        drafted, agreeing = positions[start]
        passes.append(_Position(min(drafted, k), min(agreeing, k)))
        start += passes[-1].agreeing + 1
    return _counted(passes, k, len(positions))


def _counted(passes: Sequence[_Position], k: int, decode_tokens: int) -> Replayed:
    steps = [position for position in passes if position.drafted]
    return Replayed(
        k=k,
        decode_tokens=decode_tokens,
        passes=len(passes),
        per_step_drafted=tuple(position.drafted for position in steps),
        per_step_accepted=tuple(position.agreeing for position in steps),
    )
