from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftrunner.embedded.contexts import ContextStore  # noqa: E402 - after the skip
from draftrunner.embedded.kv import GrowingLayer, KvCache  # noqa: E402

CONTEXT = [1, 2, 3, 4]
DRAFT = [5, 6, 7]


def cache_of(tokens: Sequence[int]) -> KvCache:
    """A cache whose keys are the tokens themselves."""
    layer = GrowingLayer()
    states = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1)
    layer.update(states, states)
    return KvCache([layer])


def tokens_of(cache: KvCache | None) -> list[int] | None:
    if cache is None:
        return None
    nothing = torch.empty(1, 1, 0, 1)
    keys, _ = cache.update(nothing, nothing, 0)
    return [int(key) for key in keys.flatten()]


def store_of(*scored: tuple[Sequence[int], Sequence[int]], most_tokens: int = 1000) -> ContextStore:
    store = ContextStore(most_tokens=most_tokens)
    for context, draft in scored:
        ids = [*context, *draft]
        store.keep(ids, len(draft), cache_of(ids))
    return store


@pytest.mark.parametrize("accepted", range(4))
def test_what_a_scored_draft_emitted_is_all_that_is_left_to_compute(accepted: int) -> None:
    emitted = [*DRAFT[:accepted], 9]
    grown = [*CONTEXT, *emitted]
    assert tokens_of(store_of((CONTEXT, DRAFT)).take(grown)) == grown[:-1]


def test_an_answer_cut_inside_what_was_emitted_goes_on_too() -> None:
    assert tokens_of(store_of((CONTEXT, DRAFT)).take([*CONTEXT, 5])) == CONTEXT


def test_a_context_is_handed_over_without_a_copy_and_only_once() -> None:
    cache = cache_of(CONTEXT + DRAFT)
    store = ContextStore(most_tokens=1000)
    store.keep(CONTEXT + DRAFT, len(DRAFT), cache)
    assert store.take([*CONTEXT, 9]) is cache
    assert store.take([*CONTEXT, 9]) is None


def test_a_twin_gets_a_copy_and_leaves_the_first_what_it_had() -> None:
    cache = cache_of(CONTEXT + DRAFT)
    store = ContextStore(most_tokens=1000)
    store.keep(CONTEXT + DRAFT, len(DRAFT), cache)
    twins = store.take(CONTEXT)
    assert tokens_of(twins) == CONTEXT[:-1]
    assert twins is not None
    twins.cut(0)
    states = torch.zeros(1, 1, 3, 1)
    twins.update(states, states, 0)
    assert tokens_of(store.take([*CONTEXT, 5, 9])) == [*CONTEXT, 5]


@pytest.mark.parametrize(
    "context",
    [[1, 2, 9, 4, 5], [1, 2, 3], [2, 3, 4, 5], [*CONTEXT, *DRAFT, 8, 9], [7]],
    ids=["another token inside", "shorter", "another beginning", "longer than one step", "another"],
)
def test_a_context_that_no_kept_one_leads_to_finds_nothing(context: list[int]) -> None:
    assert store_of((CONTEXT, DRAFT)).take(context) is None


def test_of_several_contexts_the_longest_is_taken() -> None:
    store = store_of(([1, 2], [3, 4, 5]), ([1, 2, 3, 4], []), ([1, 2, 3], [9]))
    assert tokens_of(store.take([1, 2, 3, 4, 5])) == [1, 2, 3, 4]


def test_a_context_of_one_token_is_computed_anew() -> None:
    assert tokens_of(store_of(([1], [2])).take([1])) == []


def test_the_contexts_used_longest_ago_go_first() -> None:
    store = store_of(([1], [5]), ([2], [5]), ([3], [5]), most_tokens=4)
    assert store.take([1, 5]) is None
    assert tokens_of(store.take([2, 5])) == [2]
    assert tokens_of(store.take([3, 5])) == [3]


def test_a_context_longer_than_the_store_is_not_kept() -> None:
    assert store_of((CONTEXT, DRAFT), most_tokens=6).take([*CONTEXT, 5]) is None


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(calls=st.lists(st.tuples(tokens, st.lists(st.integers(0, 2), max_size=4)), max_size=12))
@settings(max_examples=50)
def test_whatever_was_scored_before_what_is_taken_are_the_contexts_own_tokens(
    calls: list[tuple[list[int], list[int]]],
) -> None:
    store = ContextStore(most_tokens=40)
    for context, draft in calls:
        taken = tokens_of(store.take(context)) or []
        assert taken == context[: len(taken)]
        assert len(taken) < len(context), "the last one is computed anew"
        store.keep(context + draft, len(draft), cache_of(context + draft))
