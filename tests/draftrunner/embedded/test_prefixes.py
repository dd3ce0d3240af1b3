from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftrunner.embedded.kv import GrowingLayer, KvCache  # noqa: E402 - after the skip
from draftrunner.embedded.prefixes import CHUNK, PrefixStore  # noqa: E402

FIRST, SECOND, THIRD = ([number] * CHUNK for number in (1, 2, 3))


def cache_of(tokens: Sequence[int]) -> KvCache:
    """A cache whose keys are the tokens themselves."""
    layer = GrowingLayer()
    states = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1)
    layer.update(states, states)
    return KvCache([layer])


def tokens_of(cache: KvCache | None) -> list[int]:
    if cache is None:
        return []
    nothing = torch.empty(1, 1, 0, 1)
    keys, _ = cache.update(nothing, nothing, 0)
    return [int(key) for key in keys.flatten()]


def store_of(*prompts: Sequence[int], most_tokens: int = 10 * CHUNK) -> PrefixStore:
    store = PrefixStore(most_tokens=most_tokens)
    for prompt in prompts:
        store.keep(prompt, cache_of(prompt))
    return store


def test_the_whole_chunks_that_a_prompt_shares_are_found() -> None:
    store = store_of(FIRST + SECOND + [7, 8, 9])
    assert tokens_of(store.find(FIRST + SECOND + [7, 8, 9])) == FIRST + SECOND
    assert tokens_of(store.find(FIRST + SECOND[:-1] + [9] * 5)) == FIRST
    assert tokens_of(store.find(SECOND + FIRST)) == []


def test_at_least_one_token_is_left_to_compute() -> None:
    assert tokens_of(store_of(FIRST + SECOND).find(FIRST + SECOND)) == FIRST


def test_the_longest_of_several_prefixes_is_found() -> None:
    store = store_of(FIRST + SECOND, FIRST + THIRD)
    assert tokens_of(store.find(FIRST + THIRD + [5])) == FIRST + THIRD


def test_what_is_found_may_be_written_to() -> None:
    store = store_of(FIRST)
    found = store.find([*FIRST, 5])
    assert found is not None
    found.cut(0)
    states = torch.zeros(1, 1, 3, 1)
    found.update(states, states, 0)
    assert tokens_of(store.find([*FIRST, 5])) == FIRST


def test_a_prompt_shorter_than_a_chunk_is_not_kept() -> None:
    store = store_of([1, 2, 3])
    assert store.find([1, 2, 3, 4]) is None


def test_of_a_prompt_longer_than_the_store_the_beginning_is_kept() -> None:
    store = store_of(FIRST + SECOND, most_tokens=CHUNK + 1)
    assert tokens_of(store.find([*FIRST, *SECOND, 5])) == FIRST


def test_the_least_recently_used_prefix_goes_first() -> None:
    store = store_of(FIRST, SECOND, most_tokens=2 * CHUNK)
    store.find([*FIRST, 0])
    store.keep(THIRD, cache_of(THIRD))
    assert tokens_of(store.find([*FIRST, 0])) == FIRST
    assert tokens_of(store.find([*SECOND, 0])) == []


def test_keeping_a_prefix_again_counts_as_using_it() -> None:
    store = store_of(FIRST, SECOND, FIRST, THIRD, most_tokens=2 * CHUNK)
    assert tokens_of(store.find([*FIRST, 0])) == FIRST


def test_a_prefix_of_a_longer_one_takes_no_room() -> None:
    store = store_of(FIRST, SECOND, FIRST + THIRD, most_tokens=3 * CHUNK)
    assert tokens_of(store.find([*SECOND, 0])) == SECOND
    assert tokens_of(store.find([*FIRST, 0])) == FIRST
