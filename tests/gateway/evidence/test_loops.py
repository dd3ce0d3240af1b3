import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.loops import is_looping


@pytest.mark.parametrize(("period", "looping"), [(1, True), (15, True), (16, False), (40, False)])
def test_a_long_repetition_loops_when_its_period_is_under_sixteen(period: int, looping: bool) -> None:
    ids = [position % period for position in range(200)]

    assert is_looping(ids) is looping


def test_a_repetition_that_was_left_behind_does_not_count() -> None:
    assert not is_looping([7] * 200 + list(range(64)))


def test_a_repetition_at_the_end_counts_however_varied_the_start_was() -> None:
    assert is_looping(list(range(500)) + [1, 2, 3] * 30)


def test_fifteen_distinct_grams_in_the_tail_loop_and_sixteen_do_not() -> None:
    assert is_looping([0] * 49 + list(range(15)))
    assert not is_looping([0] * 48 + list(range(16)))


@given(st.lists(st.integers(0, 3), max_size=18))
def test_an_answer_too_short_to_hold_sixteen_grams_is_never_marked(ids: list[int]) -> None:
    assert not is_looping(ids)


@given(st.lists(st.integers(), min_size=19, max_size=200, unique=True))
def test_an_answer_that_never_repeats_a_token_is_never_marked(ids: list[int]) -> None:
    assert not is_looping(ids)
