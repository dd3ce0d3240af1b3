import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.identity import Likeness, first_difference, likeness

answers = st.lists(st.integers(0, 5), max_size=20)


@pytest.mark.parametrize(
    ("left", "right", "position"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1, 2], [1, 2, 3], 2),
        ([], [4], 0),
    ],
)
def test_the_first_difference(left: list[int], right: list[int], position: int | None) -> None:
    assert first_difference(left, right) == position


@given(answers, answers)
def test_answers_agree_up_to_their_first_difference_and_not_there(left: list[int], right: list[int]) -> None:
    position = first_difference(left, right)

    if position is None:
        assert left == right
    else:
        assert left[:position] == right[:position]
        assert left[position : position + 1] != right[position : position + 1]


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ([-0.7000, -0.7009], Likeness.TIE),
        ([-0.7009, -0.7000], Likeness.TIE),
        ([-0.7, -0.7], Likeness.TIE),
        ([-0.700, -0.701], Likeness.DIFFERENT),
        ([-3.0, -0.1, -0.1005], Likeness.TIE),
        ([-0.1], Likeness.DIFFERENT),
        ([], Likeness.DIFFERENT),
    ],
)
def test_a_difference_is_excused_only_where_the_target_is_undecided(
    best: list[float], expected: Likeness
) -> None:
    assert likeness([1, 2, 3], [1, 9, 3], best) is expected


@given(answers)
def test_an_answer_equals_itself_whatever_the_logprobs(ids: list[int]) -> None:
    assert likeness(ids, ids, []) is Likeness.EQUAL
