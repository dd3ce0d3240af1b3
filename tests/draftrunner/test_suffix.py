from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftrunner.drafters.suffix
from draftrunner.drafters.suffix import MOST_OCCURRENCES, SuffixDrafter
from draftrunner.model import NOBODY, DraftSession, Origin, Profile
from draftrunner.profiles import EMBEDDED

EAGER = replace(EMBEDDED, max_spec_factor=8.0, min_token_prob=0.0)
"""Drafts as much as it can."""
MINE = Origin(tenant="me")


def proposed(context: Sequence[int], k: int = 8, *, profile: Profile = EMBEDDED) -> list[int]:
    return SuffixDrafter(profile).open(context).propose(k)


def counting(start: float = 100.0) -> Iterator[float]:
    """Moments a second apart."""
    return itertools.count(start)


# --- the request's own text ------------------------------------------------------------------


def test_what_followed_the_match_is_proposed() -> None:
    assert proposed([1, 2, 3, 4, 5, 1, 2, 3]) == [4, 5, 1]


def test_a_match_drafts_as_many_tokens_as_it_is_long() -> None:
    assert proposed([1, 2, 3, 4, 5, 6, 7, 1, 2]) == [3, 4]
    assert proposed([1, 2, 3, 4, 5, 6, 7, 1, 2], profile=replace(EMBEDDED, max_spec_factor=2.0)) == [
        3,
        4,
        5,
        6,
    ]
    assert proposed([1, 2, 3, 4, 5, 6, 7, 1, 2], profile=replace(EMBEDDED, max_spec_factor=0.4)) == []


def test_no_more_than_k_tokens_are_proposed() -> None:
    assert proposed([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    assert proposed([1, 2, 3, 4, 5, 1, 2, 3], 0) == []


@pytest.mark.parametrize("context", [[], [1], [1, 2, 3]])
def test_without_a_match_nothing_is_proposed(context: list[int]) -> None:
    assert proposed(context) == []


def test_the_most_frequent_continuation_is_followed() -> None:
    context = [5, 6, 1, 0, 5, 6, 1, 0, 5, 6, 2, 0, 5, 6]
    assert proposed(context, 1) == [1]


def test_of_equally_frequent_continuations_the_latest_is_followed() -> None:
    assert proposed([5, 6, 1, 0, 5, 6, 2, 0, 5, 6], 1) == [2]


def test_a_draft_ends_where_it_becomes_unlikely() -> None:
    """After 1 came 2 three times, and after 1 2 each time something else."""
    context = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1]
    eager = replace(EMBEDDED, max_spec_factor=2.0)
    assert proposed(context, profile=replace(eager, min_token_prob=0.3)) == [2, 5]
    assert proposed(context, profile=replace(eager, min_token_prob=0.4)) == [2]


def test_the_draft_with_more_tokens_expected_to_be_accepted_wins_so_proposals_depend_on_k() -> None:
    """5 and 6 followed 0 1 2 once each; 7 followed 2 five times of seven, and 2 may draft one token only."""
    context = [0, 1, 2, 5, 0, 1, 2, 6, 4, 1, 2, 7, 3, 2, 7, 3, 2, 7, 3, 2, 7, 3, 0, 1, 2]
    assert proposed(context, 1) == [7]
    assert proposed(context, 3) == [6, 4, 1], "half a chance of each of three is more"
    assert not SuffixDrafter(EMBEDDED).consistent


def test_matches_longer_than_the_tree_is_deep_are_not_told_apart() -> None:
    """Nine tokens ago decides, if one looks as far."""
    phrase = [1, 2, 3, 4, 5, 6, 7, 8]
    context = [9, *phrase, 10, 0, *phrase, 11, 0, *phrase, 11, 9, *phrase]
    assert proposed(context, 1) == [10]
    assert proposed(context, 1, profile=replace(EMBEDDED, max_tree_depth=9)) == [11]


def test_only_the_latest_occurrences_are_counted() -> None:
    context = [1, 2] * MOST_OCCURRENCES + [1, 3] * (MOST_OCCURRENCES // 2 + 1) + [1]
    assert proposed(context, 1, profile=replace(EMBEDDED, max_tree_depth=2)) == [3]


@dataclass(frozen=True)
class Told:
    """A draft by the definition, and what its tokens are expected to bring."""

    tokens: list[int]
    score: float


def by_the_definition(
    profile: Profile, context: Sequence[int], texts: Sequence[Sequence[int]], k: int, best: Told
) -> Told:
    """Look at every place of every text for every length; texts are given from the oldest to the newest."""
    for length in range(min(profile.max_tree_depth - 1, len(context)), 0, -1):
        match = list(context[-length:])
        rests = [
            list(text[place:])
            for text in reversed(texts)
            for place in range(len(text) - 1, length - 1, -1)
            if list(text[place - length : place]) == match
        ]
        told = followed(rests, min(k, int(length * profile.max_spec_factor)), profile.min_token_prob)
        best = max(best, told, key=lambda one: one.score)
    return best


def followed(rests: list[list[int]], most: int, min_prob: float) -> Told:
    tokens: list[int] = []
    score, prob = 0.0, 1.0
    while len(tokens) < most:
        next_tokens = [rest[len(tokens)] for rest in rests if len(rest) > len(tokens)]
        if not next_tokens:
            break
        likeliest = max(next_tokens, key=next_tokens.count)
        prob *= next_tokens.count(likeliest) / len(next_tokens)
        if prob < min_prob:
            break
        tokens.append(likeliest)
        score += prob
        rests = [rest for rest in rests if rest[: len(tokens)] == tokens]
    return Told(tokens, score)


small_texts = st.lists(st.integers(0, 3), max_size=MOST_OCCURRENCES)
few_texts = st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=4)
profiles = st.builds(
    lambda depth, factor, prob: replace(
        EMBEDDED, max_tree_depth=depth, max_spec_factor=factor, min_token_prob=prob
    ),
    st.integers(2, 24),
    st.sampled_from([0.5, 1.0, 1.5, 4.0]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)


@pytest.mark.slow
@given(profile=profiles, context=small_texts, answers=few_texts, k=st.integers(0, 16))
@settings(deadline=None, max_examples=300)
def test_proposals_follow_the_definition(
    profile: Profile, context: list[int], answers: list[list[int]], k: int
) -> None:
    drafter = SuffixDrafter(profile)
    for answer in answers:
        drafter.learn(answer, MINE)
    own = by_the_definition(profile, context, [context], k, Told([], 0.0))
    best = by_the_definition(profile, context, answers, k, own)
    assert drafter.open(context, MINE).propose(k) == best.tokens


# --- earlier answers -------------------------------------------------------------------------


def test_a_tenants_earlier_answer_is_copied_from() -> None:
    drafter = SuffixDrafter(EMBEDDED)
    drafter.learn([1, 2, 3, 4, 5, 6], MINE)
    assert drafter.open([9, 1, 2, 3], MINE).propose(5) == [4, 5, 6]


def test_nothing_is_matched_or_followed_across_two_answers() -> None:
    drafter = SuffixDrafter(EAGER)
    drafter.learn([1, 2, 3], MINE)
    drafter.learn([4, 5, 6], MINE)
    assert drafter.open([9, 1, 2], MINE).propose(5) == [3]
    assert drafter.open([3, 4], MINE).propose(5) == [5, 6]
    assert drafter.open([2, 3], MINE).propose(5) == []


def test_nobody_learns_and_nobody_copies() -> None:
    drafter = SuffixDrafter(EMBEDDED)
    drafter.learn([1, 2, 3, 4], NOBODY)
    assert drafter.open([1, 2], NOBODY).propose(5) == []


def test_equally_good_drafts_come_from_the_requests_own_text() -> None:
    drafter = SuffixDrafter(EMBEDDED)
    drafter.learn([1, 2, 3], MINE)
    assert drafter.open([1, 2, 4, 1, 2], MINE).propose(1) == [4]


def test_a_request_sees_what_was_learnt_before_it_began_and_nothing_later() -> None:
    moments = counting(start=100.0)
    drafter = SuffixDrafter(EMBEDDED, now=lambda: next(moments))
    for last in (3, 4, 5):
        drafter.learn([1, 2, last], MINE)  # at 100, 101 and 102
    seen = {
        moment: drafter.open([1, 2], Origin(tenant="me", as_of=moment)).propose(1)
        for moment in (99.0, 100.0, 100.5, 101.5, 102.5)
    }
    assert seen == {99.0: [], 100.0: [], 100.5: [3], 101.5: [4], 102.5: [5]}


def test_a_session_does_not_see_what_is_learnt_or_dropped_after_it_was_opened() -> None:
    drafter = SuffixDrafter(EMBEDDED, tokens_per_tenant=20, tenants=1)
    drafter.learn([1, 2, 3], MINE)
    session = drafter.open([1, 2], MINE)
    for _ in range(9):
        drafter.learn([1, 2, 4], MINE)
    drafter.learn([1, 2, 5], Origin(tenant="another"))
    assert session.propose(1) == [3]


def test_a_clock_that_is_set_back_shows_nothing_too_early() -> None:
    moments = iter([100.0, 50.0])
    drafter = SuffixDrafter(EMBEDDED, now=lambda: next(moments))
    drafter.learn([1, 2, 3], MINE)
    drafter.learn([5, 6, 7], MINE)
    between, after = Origin(tenant="me", as_of=75.0), Origin(tenant="me", as_of=101.0)
    assert drafter.open([1, 2], between).propose(1) == []
    assert drafter.open([1, 2], after).propose(1) == [3]
    assert drafter.open([5, 6], after).propose(1) == [7]


def test_of_two_answers_the_later_is_followed_even_where_they_are_dropped_apart() -> None:
    drafter = SuffixDrafter(EMBEDDED, tokens_per_tenant=10)
    drafter.learn([1, 2, 3], MINE)
    drafter.learn([1, 2, 4], MINE)
    assert drafter.open([1, 2], MINE).propose(1) == [4]


def test_the_oldest_tokens_of_a_tenant_are_dropped() -> None:
    drafter = SuffixDrafter(EMBEDDED, tokens_per_tenant=40)
    for first in range(0, 200, 10):
        drafter.learn([first, first + 1, first + 2, first + 3], MINE)
    remembered = [first for first in range(0, 200, 10) if drafter.open([first, first + 1], MINE).propose(1)]
    assert remembered == list(range(200 - 10 * len(remembered), 200, 10))
    assert 4 <= len(remembered) <= 8, "at most 40 tokens with their ends, and at least half as many"


def test_of_an_answer_longer_than_what_is_kept_the_end_is_kept() -> None:
    drafter = SuffixDrafter(EMBEDDED, tokens_per_tenant=20)
    drafter.learn(list(range(100)), MINE)
    assert drafter.open([95, 96], MINE).propose(2) == [97, 98]
    assert drafter.open([5, 6], MINE).propose(2) == []


def test_the_tenant_that_learnt_longest_ago_is_dropped() -> None:
    drafter = SuffixDrafter(EMBEDDED, tenants=2)
    for tenant in ("a", "b", "a", "c"):
        drafter.learn([1, 2, 3], Origin(tenant=tenant))
    remembered = [name for name in "abc" if drafter.open([1, 2], Origin(tenant=name)).propose(1)]
    assert remembered == ["a", "c"]


# --- never another tenant's ------------------------------------------------------------------

learnt = st.lists(st.tuples(st.sampled_from(["me", "you", "them", ""]), small_texts), max_size=12)


@given(learnt=learnt, context=small_texts, as_of=st.none() | st.integers(0, 12), k=st.integers(1, 16))
@settings(deadline=None, max_examples=200)
def test_other_tenants_and_later_answers_leave_no_trace(
    learnt: list[tuple[str, list[int]]], context: list[int], as_of: int | None, k: int
) -> None:
    """As if nobody else had been there, and the time after had not come yet."""
    moments = counting(start=0)
    shared = SuffixDrafter(EAGER, now=lambda: next(moments))
    alone = SuffixDrafter(EAGER)
    moment = 0
    for tenant, answer in learnt:
        shared.learn(answer, Origin(tenant=tenant))
        if tenant == "me" and (as_of is None or moment < as_of):
            alone.learn(answer, MINE)
        moment += bool(tenant and answer)
    seen = shared.open(context, Origin(tenant="me", as_of=as_of))
    assert seen.propose(k) == alone.open(context, MINE).propose(k)


@given(learnt=learnt, contexts=st.lists(small_texts, max_size=4))
@settings(deadline=None)
def test_a_draft_never_holds_a_token_of_another_tenants_whatever_is_dropped(
    learnt: list[tuple[str, list[int]]], contexts: list[list[int]]
) -> None:
    """Each tenant has ids of its own here, and shares the ids of the contexts."""
    drafter = SuffixDrafter(EAGER, tokens_per_tenant=24, tenants=2)
    own = {"me": 100, "you": 200, "them": 300, "": 400}
    opened: list[tuple[str, DraftSession]] = []
    for tenant, answer in learnt:
        marked = [*itertools.chain.from_iterable((token, own[tenant] + token) for token in answer)]
        drafter.learn(marked, Origin(tenant=tenant))
        opened += [(name, drafter.open(context, Origin(tenant=name))) for name in own for context in contexts]
    for tenant, session in opened:
        assert all(token < 100 or token // 100 == own[tenant] // 100 for token in session.propose(8))


def test_learning_while_others_draft_disturbs_neither() -> None:
    """Drafts stay pieces of the one answer that the tenant has, while many more are learnt."""
    drafter = SuffixDrafter(EAGER, tokens_per_tenant=400, tenants=3)
    answer = list(range(20))
    done = threading.Event()

    def draft() -> set[tuple[int, ...]]:
        proposals = set()
        while not done.is_set():
            session = drafter.open([3, 4, 5], MINE)
            proposals |= {tuple(session.propose(8)) for _ in range(20)}
        return proposals

    with ThreadPoolExecutor() as pool:
        drafting = [pool.submit(draft) for _ in range(2)]
        for number in range(300):
            drafter.learn(answer, MINE)
            drafter.learn([token + 100 for token in answer], Origin(tenant=f"tenant {number % 5}"))
        done.set()
    assert all(proposals.result() <= {(), tuple(answer[6:14])} for proposals in drafting)


def test_looking_up_costs_the_same_in_text_that_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    agreeing = draftrunner.drafters.suffix._agreeing

    def counted(*arguments: object) -> int:
        nonlocal compared
        compared += 1
        return agreeing(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(draftrunner.drafters.suffix, "_agreeing", counted)
    drafter = SuffixDrafter(EMBEDDED)
    for _ in range(10):
        drafter.learn([1, 2] * 500, MINE)
    drafter.open([1, 2] * 2000, MINE).propose(8)
    assert 0 < compared <= 2 * 4 * MOST_OCCURRENCES
