"""Verification is lossless: what comes out follows the target, whatever was drafted.

Proved by adding up every path's exact probability (fractions, no tolerance), on the `verify` and the
`step` that the engine calls and on the loop that the draft runner's route calls; then by statistics.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftrunner.loop
from draftrunner.loop import step
from draftrunner.remote_loop import Task, draft_answer
from draftrunner.verify import Verdict, verify
from tests.fakes.lines import TargetLine
from tests.fakes.target import CachedTarget

Outcome = TypeVar("Outcome")
Tokens = tuple[int, ...]
Distribution = tuple[Fraction, ...]
Rule = Callable[[Tokens], Distribution]
Drafting = Callable[[Tokens, int], list[int]]
Draw = Callable[[Distribution], int]
Way = Callable[[Rule, Drafting, int, int], Callable[[Draw], Tokens]]

PROMPT = (0,)


# --- adding up paths -------------------------------------------------------------------------


def every_path(experiment: Callable[[Draw], Outcome]) -> Iterator[tuple[Outcome, Fraction]]:
    """Run `experiment(draw)` once for each sequence of outcomes that has a chance, with that chance."""
    scripts: list[Tokens] = [()]
    while scripts:
        script = scripts.pop()
        taken: list[int] = []
        chance = Fraction(1)

        def draw(distribution: Distribution, script: Tokens = script, taken: list[int] = taken) -> int:
            nonlocal chance
            possible = [token for token, weight in enumerate(distribution) if weight]
            if len(taken) < len(script):
                outcome = script[len(taken)]
            else:
                outcome, *others = possible
                scripts.extend((*taken, other) for other in others)
            taken.append(outcome)
            chance *= distribution[outcome]
            return outcome

        yield experiment(draw), chance


def distribution_of(experiment: Callable[[Draw], Tokens]) -> dict[Tokens, Fraction]:
    total: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    for outcome, chance in every_path(experiment):
        total[outcome] += chance
    return dict(total)


def target_alone(rule: Rule, length: int) -> dict[Tokens, Fraction]:
    """The distribution of `length` tokens, by the chain rule."""
    chances: dict[Tokens, Fraction] = {(): Fraction(1)}
    for _ in range(length):
        chances = {
            (*tokens, token): chance * weight
            for tokens, chance in chances.items()
            for token, weight in enumerate(rule((*PROMPT, *tokens)))
            if weight
        }
    return chances


def by_verify(rule: Rule, drafting: Drafting, k: int, length: int) -> Callable[[Draw], Tokens]:
    """Emit `length` tokens with `verify` alone."""

    def experiment(draw: Draw) -> Tokens:
        tokens: Tokens = PROMPT
        while len(tokens) < len(PROMPT) + length:
            tokens += one_verification(rule, drafting(tokens, k), tokens, draw)
        return tokens[len(PROMPT) :][:length]

    return experiment


def one_verification(rule: Rule, draft: list[int], tokens: Tokens, draw: Draw) -> Tokens:
    return verify(draft, lambda i: draw(rule((*tokens, *draft[:i])))).tokens


class PolicySession:
    """A drafter's session over any drafting function."""

    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting
        self._tokens: Tokens = PROMPT

    def propose(self, k: int) -> list[int]:
        return self._drafting(self._tokens, k)

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens += tuple(tokens)

    def close(self) -> None:
        """Holds nothing."""


def by_loop(rule: Rule, drafting: Drafting, k: int, length: int) -> Callable[[Draw], Tokens]:
    """Emit `length` tokens with the engine's loop."""

    def experiment(draw: Draw) -> Tokens:
        context = list(PROMPT)
        target = CachedTarget(rule, context)
        session = PolicySession(drafting)
        left = length

        def ends(token: int) -> bool:
            nonlocal left
            left -= 1
            return left == 0

        while left:
            step(
                target=target,
                context=context,
                session=session,
                k=k,
                choose=lambda row, position: draw(row),
                ends=ends,
            )
        return tuple(context[len(PROMPT) :])

    return experiment


def by_remote_loop(rule: Rule, drafting: Drafting, k: int, length: int) -> Callable[[Draw], Tokens]:
    """Emit `length` tokens with the loop of a target that is called elsewhere.

    The target chooses at every position of a draft, beyond the first disagreement too.
    """

    def experiment(draw: Draw) -> Tokens:
        task = Task(prompt=PROMPT, k=k, max_tokens=length, plain_seconds_per_token=None)
        line = TargetLine(lambda tokens: draw(rule(tokens)), PROMPT)
        return tuple(draft_answer(task, PolicySession(drafting), line, clock=float))

    return experiment


LOOPS = pytest.mark.parametrize("way", [by_loop, by_remote_loop])
WAYS = pytest.mark.parametrize("way", [by_verify, by_loop, by_remote_loop])

# --- small targets and drafters --------------------------------------------------------------


def second_order_rule(rows: Sequence[Distribution]) -> Rule:
    """A target over len(row) tokens that looks at its last two tokens."""
    return lambda tokens: rows[sum(token * 3**i for i, token in enumerate(tokens[-2:])) % len(rows)]


def distribution(*weights: int) -> Distribution:
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


SKEWED = second_order_rule(
    [distribution(1, 2, 4), distribution(7, 1, 0), distribution(0, 0, 1), distribution(3, 3, 1)]
)
FOUR_TOKENS = second_order_rule(
    [distribution(1, 2, 3, 4), distribution(9, 1, 1, 0), distribution(1, 0, 0, 5)]
)


def nothing(tokens: Tokens, k: int) -> list[int]:
    return []


def always_zero(tokens: Tokens, k: int) -> list[int]:
    return [0] * k


def repeats_the_context(tokens: Tokens, k: int) -> list[int]:
    return list(itertools.islice(itertools.cycle(tokens), k))


def shorter_each_time(tokens: Tokens, k: int) -> list[int]:
    return [1] * max(0, k - len(tokens) + 1)


def picks_by(order: Callable[[Sequence[Fraction]], Fraction], rule: Rule) -> Drafting:
    """A drafter that knows the target, and drafts its most, or its least, likely token."""

    def drafting(tokens: Tokens, k: int) -> list[int]:
        draft: list[int] = []
        for _ in range(k):
            row = rule((*tokens, *draft))
            draft.append(row.index(order(row)))
        return draft

    return drafting


def policies(rule: Rule) -> list[Drafting]:
    knowing: list[Drafting] = [picks_by(max, rule), picks_by(min, rule)]
    return [nothing, always_zero, repeats_the_context, shorter_each_time, *knowing]


# --- the proof -------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize(("rule", "length"), [(SKEWED, 4), (FOUR_TOKENS, 3)], ids=["skewed", "four_tokens"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_output_follows_the_target_exactly_under_every_draft_policy(
    way: Way, rule: Rule, length: int, k: int
) -> None:
    expected = target_alone(rule, length)
    for drafting in policies(rule):
        assert distribution_of(way(rule, drafting, k, length)) == expected


weights = st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any)
targets = st.lists(weights, min_size=1, max_size=9).map(
    lambda rows: second_order_rule([distribution(*row) for row in rows])
)
drafts = st.dictionaries(
    st.lists(st.integers(0, 2), min_size=2, max_size=2).map(tuple),
    st.lists(st.integers(0, 3), max_size=3),
)


@WAYS
@given(rule=targets, table=drafts, k=st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_output_follows_any_target_exactly_under_any_drafts(
    way: Way, rule: Rule, table: dict[Tokens, list[int]], k: int
) -> None:
    def drafting(tokens: Tokens, k: int) -> list[int]:
        return list(table.get(tokens[-2:], [2, 1, 0]))[:k]

    assert distribution_of(way(rule, drafting, k, 3)) == target_alone(rule, 3)


def waves_a_zero_through(draft: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """A lossy rule: a first draft of token 0 is accepted unseen."""
    verdict = verify(draft, choose)
    return Verdict(accepted=1, tokens=(0,)) if draft[:1] == [0] else verdict


@LOOPS
def test_the_sum_over_paths_catches_a_lossy_rule(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    monkeypatch.setattr(draftrunner.loop, "verify", waves_a_zero_through)
    assert distribution_of(way(SKEWED, always_zero, 2, 3)) != target_alone(SKEWED, 3)


# --- what one verification says --------------------------------------------------------------


@given(
    choices=st.lists(st.integers(0, 2), min_size=9, max_size=9), draft=st.lists(st.integers(0, 2), max_size=8)
)
def test_a_verdict_is_the_targets_own_choices_up_to_the_first_disagreement(
    choices: list[int], draft: list[int]
) -> None:
    asked: list[int] = []

    def choose(i: int) -> int:
        asked.append(i)
        return choices[i]

    verdict = verify(draft, choose)
    assert verdict.tokens == tuple(choices[: verdict.accepted + 1])
    assert draft[: verdict.accepted] == choices[: verdict.accepted]
    assert verdict.accepted == len(draft) or draft[verdict.accepted] != choices[verdict.accepted]
    assert asked == list(range(verdict.accepted + 1)), "in order, and never beyond the first disagreement"


@pytest.mark.parametrize(
    ("draft", "accepted", "tokens"),
    [([], 0, (7,)), ([7], 1, (7, 8)), ([8], 0, (7,)), ([7, 9, 9], 1, (7, 8)), ([7, 8, 9], 3, (7, 8, 9, 5))],
)
def test_a_correction_or_bonus_token_is_never_an_accepted_one(
    draft: list[int], accepted: int, tokens: Tokens
) -> None:
    assert verify(draft, [7, 8, 9, 5].__getitem__) == Verdict(accepted=accepted, tokens=tokens)


@pytest.mark.slow
def test_two_hundred_thousand_draws_pass_a_chi_square_test() -> None:
    """On a five-token vocabulary, a likely and an unlikely draft together."""
    probabilities = [0.4, 0.3, 0.15, 0.1, 0.05]
    draws, critical_at_one_in_a_million = 200_000, 33.38
    source = random.Random(20240)
    emitted: Counter[int] = Counter()
    while emitted.total() < draws:
        chosen = source.choices(range(5), probabilities, k=3)
        emitted.update(verify([0, 4], chosen.__getitem__).tokens)
    total = emitted.total()
    chi_square = sum((emitted[t] - total * p) ** 2 / (total * p) for t, p in enumerate(probabilities))
    assert chi_square < critical_at_one_in_a_million
