import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.demo.pace import FULL, QUICK, Pace

PACE = Pace(prompts=None, max_tokens=100, calibration_rounds=1, seconds=280)


@pytest.mark.parametrize(
    ("pass_seconds", "tokens"),
    [(0.001, 100), (0.02, 100), (0.05, 66), (0.1, 33), (10.0, 20)],
)
def test_answers_are_shortened_on_a_slow_machine_only_and_never_below_what_can_be_timed(
    pass_seconds: float, tokens: int
) -> None:
    assert PACE.answer_tokens(30, pass_seconds) == tokens


@given(st.sampled_from([FULL, QUICK]), st.integers(1, 60), st.floats(0.001, 0.2), st.floats(1, 3))
def test_a_slower_machine_never_gets_longer_answers(
    pace: Pace, prompts: int, pass_seconds: float, factor: float
) -> None:
    assert pace.answer_tokens(prompts, pass_seconds * factor) <= pace.answer_tokens(prompts, pass_seconds)
