"""What every registered drafter promises, under every profile."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftrunner.drafters import DRAFTERS
from draftrunner.model import MAX_LOOKAHEAD, Drafter, Origin
from draftrunner.profiles import PROFILES

pytestmark = pytest.mark.slow

DRAFTERS_BY_ID = {
    f"{name}-{profile.name}": make(profile)
    for name, make in DRAFTERS.items()
    for profile in PROFILES.values()
}
CONSISTENT = {key: drafter for key, drafter in DRAFTERS_BY_ID.items() if drafter.consistent}
EVERY_DRAFTER = pytest.mark.parametrize("drafter", DRAFTERS_BY_ID.values(), ids=DRAFTERS_BY_ID)
ME, YOU = Origin(tenant="me"), Origin(tenant="you")

repetitive = st.lists(st.integers(0, 3), min_size=1, max_size=40)
lookaheads = st.integers(0, MAX_LOOKAHEAD)


def test_a_drafter_is_registered_under_its_own_name_and_a_profile_too() -> None:
    for profile_name, profile in PROFILES.items():
        assert profile.name == profile_name
        for drafter_name, make in DRAFTERS.items():
            assert make(profile).name == drafter_name


@pytest.mark.parametrize("drafter", CONSISTENT.values(), ids=CONSISTENT)
@given(context=repetitive, j=lookaheads, k=lookaheads)
@settings(deadline=None)
def test_a_shorter_proposal_of_a_consistent_drafter_is_a_prefix_of_a_longer_one(
    drafter: Drafter, context: list[int], j: int, k: int
) -> None:
    session = drafter.open(context)
    j, k = sorted((j, k))
    assert session.propose(j) == session.propose(k)[:j]


@EVERY_DRAFTER
@given(context=repetitive, k=lookaheads)
@settings(deadline=None)
def test_a_proposal_holds_at_most_k_token_ids(drafter: Drafter, context: list[int], k: int) -> None:
    draft = drafter.open(context).propose(k)
    assert len(draft) <= k
    assert all(isinstance(token, int) and token >= 0 for token in draft)


@EVERY_DRAFTER
@given(context=repetitive, cuts=st.sets(st.integers(1, 39)), k=lookaheads)
@settings(deadline=None)
def test_a_proposal_depends_on_the_context_alone(
    drafter: Drafter, context: list[int], cuts: set[int], k: int
) -> None:
    """Not on how the context came in pieces, nor on what was proposed on the way."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(context)), len(context)]
    pieces = [context[start:end] for start, end in itertools.pairwise(edges)]
    session = drafter.open(pieces[0])
    for piece in pieces[1:]:
        session.propose(k)
        session.extend(piece)
    assert session.propose(k) == drafter.open(context).propose(k)


@EVERY_DRAFTER
@given(mine=repetitive, others=repetitive, k=lookaheads)
@settings(deadline=None)
def test_sessions_do_not_share_what_they_saw(
    drafter: Drafter, mine: list[int], others: list[int], k: int
) -> None:
    alone = drafter.open(mine).propose(k)
    session = drafter.open(mine)
    drafter.open(others).extend(others)
    assert session.propose(k) == alone


@EVERY_DRAFTER
@given(mine=repetitive, others=repetitive, k=lookaheads)
@settings(deadline=None)
def test_nothing_is_ever_drafted_from_another_tenants_answers(
    drafter: Drafter, mine: list[int], others: list[int], k: int
) -> None:
    before = drafter.open(mine, ME).propose(k)
    drafter.learn(others, YOU)
    assert drafter.open(mine, ME).propose(k) == before


@EVERY_DRAFTER
@given(context=repetitive, learnt=repetitive, k=lookaheads)
@settings(deadline=None)
def test_a_session_drafts_as_if_nothing_were_learnt_after_it_was_opened(
    drafter: Drafter, context: list[int], learnt: list[int], k: int
) -> None:
    session = drafter.open(context, ME)
    before = session.propose(k)
    drafter.learn(learnt, ME)
    assert session.propose(k) == before


@EVERY_DRAFTER
@given(context=repetitive, k=lookaheads)
@settings(deadline=None)
def test_changing_a_proposal_changes_nothing_in_the_session(
    drafter: Drafter, context: list[int], k: int
) -> None:
    session = drafter.open(context)
    first = session.propose(k)
    kept = list(first)
    first.clear()
    assert session.propose(k) == kept
