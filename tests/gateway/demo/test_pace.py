from __future__ import annotations

import pytest

from gateway.demo.pace import FULL, QUICK, Pace


def test_a_fast_machine_gets_the_longest_answers() -> None:
    assert FULL.answer_tokens(30, 0.01) == FULL.max_tokens


def test_a_slow_machine_gets_shorter_ones_so_that_the_demo_ends_in_time() -> None:
    tokens = FULL.answer_tokens(30, 0.08)
    assert tokens < FULL.max_tokens
    # Off and shadow take a pass for each token; prod takes no more.
    assert 30 * 2 * tokens * 0.08 < FULL.seconds


@pytest.mark.parametrize("pace", [FULL, QUICK])
def test_an_answer_is_always_long_enough_to_be_timed(pace: Pace) -> None:
    assert pace.answer_tokens(30, 10.0) >= 16
