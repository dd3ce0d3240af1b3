from __future__ import annotations

import pytest

from gateway.demo.measure import OTHER_KS, SHORTEST, Way
from gateway.demo.pace import FULL, QUICK, Pace

ASKED = [*FULL.ways * 30, *(way for way in OTHER_KS for _ in range(15))]


def test_only_a_full_demo_has_the_time_for_the_gateways_loop() -> None:
    assert set(FULL.ways) == {*SHORTEST, Way.LOOP}
    assert QUICK.ways == SHORTEST


def test_a_fast_machine_gets_the_longest_answers() -> None:
    assert FULL.answer_tokens(ASKED, 0.01) == FULL.max_tokens


def test_a_slow_machine_gets_shorter_ones_so_that_the_demo_ends_in_time() -> None:
    tokens = FULL.answer_tokens(ASKED, 0.08)
    assert tokens < FULL.max_tokens
    # Off and shadow take a pass for each token; speculated answers take fewer.
    assert 30 * 2 * tokens * 0.08 < FULL.seconds


def test_the_more_is_asked_the_shorter_the_answers() -> None:
    assert FULL.answer_tokens(ASKED, 0.08) < FULL.answer_tokens(FULL.ways * 30, 0.08)


@pytest.mark.parametrize("pace", [FULL, QUICK])
def test_an_answer_is_always_long_enough_to_be_timed(pace: Pace) -> None:
    assert pace.answer_tokens(ASKED, 10.0) >= 16
