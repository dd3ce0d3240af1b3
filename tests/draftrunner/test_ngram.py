from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.model import Profile
from draftrunner.profiles import EMBEDDED

Tie = Literal["earliest", "latest"]


def slow_twin(context: Sequence[int], k: int, profile: Profile) -> list[int]:
    """Says the same by searching the whole context each time."""
    draft = copied(context, k, profile)
    return draft + [context[-1]] * (k - len(draft)) if profile.pad_to_k and context else draft


def copied(context: Sequence[int], k: int, profile: Profile) -> list[int]:
    for n in range(profile.max_n, profile.min_n - 1, -1):
        ends = [
            end for end in range(n, len(context)) if context[end - n : end] == context[len(context) - n :]
        ]
        if ends:
            end = ends[-1] if profile.tie == "latest" else ends[0]
            return list(context[end : end + k])
    return []


profiles = st.builds(
    lambda tie, min_n, more, pad: Profile(name="any", tie=tie, min_n=min_n, max_n=min_n + more, pad_to_k=pad),
    st.sampled_from(["earliest", "latest"]),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)
few_tokens = st.lists(st.integers(0, 2), max_size=30)


@given(prompt=few_tokens, answer=few_tokens, k=st.integers(0, 8), profile=profiles)
@settings(deadline=None, max_examples=300)
def test_every_proposal_is_the_slow_twins(
    prompt: list[int], answer: list[int], k: int, profile: Profile
) -> None:
    session = NgramDrafter(profile).open(prompt)
    for length in range(len(answer) + 1):
        assert session.propose(k) == slow_twin(prompt + answer[:length], k, profile)
        session.extend(answer[length : length + 1])


def propose(
    context: list[int], k: int, *, tie: Tie = "latest", min_n: int = 1, pad_to_k: bool = False
) -> list[int]:
    profile = Profile(name="any", tie=tie, min_n=min_n, max_n=3, pad_to_k=pad_to_k)
    return NgramDrafter(profile).open(context).propose(k)


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert propose([1, 2, 3, 7, 3, 8, 1, 2, 3], 1) == [7]


@pytest.mark.parametrize(("tie", "draft"), [("earliest", [7, 1]), ("latest", [8, 1])])
def test_of_equally_long_matches_the_profile_says_which(tie: Tie, draft: list[int]) -> None:
    assert propose([1, 2, 7, 1, 2, 8, 1, 2], 2, tie=tie) == draft


def test_a_match_shorter_than_min_n_is_none() -> None:
    assert propose([5, 1, 6, 1], 3, min_n=2) == []
    assert propose([5, 1, 6, 1], 3, min_n=1) == [6, 1]


def test_a_proposal_ends_where_the_context_ends() -> None:
    assert propose([1, 2, 1, 2], 5, min_n=2) == [1, 2]


def test_padding_repeats_the_last_token_up_to_k() -> None:
    assert propose([1, 2, 1, 2], 5, min_n=2, pad_to_k=True) == [1, 2, 2, 2, 2]
    assert propose([1, 2, 3], 2, min_n=2, pad_to_k=True) == [3, 3]


def test_a_suffix_never_matches_itself() -> None:
    assert propose([1, 2, 3, 4], 3) == []


def test_tokens_emitted_later_are_matched_too() -> None:
    session = NgramDrafter(EMBEDDED).open([9])
    session.extend([1, 2, 3, 1])
    assert session.propose(4) == []
    session.extend([2])
    assert session.propose(4) == [3, 1, 2]
