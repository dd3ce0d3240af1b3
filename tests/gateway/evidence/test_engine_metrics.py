from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.engine_metrics import EngineNumbers, read_engine_metrics

USAGE = {"prompt_tokens": 9, "completion_tokens": 41, "total_tokens": 50}
SPECULATION = {
    "num_spec_steps": 6,
    "num_draft_tokens": 17,
    "num_accepted_draft_tokens": 9,
    "acceptance_histogram": [2, 1, 1, 2],
    "num_spec_tokens": 3,
}
METRICS = {"generation_time_ms": 800.0, "mean_itl_ms": 20.0, "num_passes": 31}


def read_speculation(**changes: Any) -> EngineNumbers:
    return read_engine_metrics(USAGE, METRICS | {"speculative_decoding": SPECULATION | changes})


def test_numbers_follow_the_definitions() -> None:
    numbers = read_speculation()
    assert numbers == EngineNumbers(
        completion_tokens=41,
        prompt_tokens=9,
        decode_tokens=40,
        decode_seconds=0.8,
        tokens_per_second=50.0,
        passes=31,
        steps=6,
        draft_tokens=17,
        accepted_tokens=9,
        accepted_by_position=(4, 3, 2),
        acceptance_rate=9 / 17,
        mean_acceptance_length=1 + 9 / 6,
    )


def test_plain_decoding_has_speed_and_no_counts() -> None:
    numbers = read_engine_metrics(USAGE, METRICS | {"speculative_decoding": None})
    assert numbers.tokens_per_second == 50.0
    assert (numbers.steps, numbers.acceptance_rate, numbers.accepted_by_position) == (None, None, None)


def test_decode_time_is_found_from_the_mean_per_token() -> None:
    numbers = read_engine_metrics(USAGE, {"mean_itl_ms": 20.0})
    assert numbers.decode_seconds == pytest.approx(0.8)


@pytest.mark.parametrize("tokens", [0, 1, 15])
def test_a_short_answer_has_no_speed(tokens: int) -> None:
    numbers = read_engine_metrics({"completion_tokens": tokens}, METRICS)
    assert numbers.tokens_per_second is None
    assert numbers.decode_tokens == max(tokens - 1, 0)


def test_sixteen_tokens_have_a_speed() -> None:
    numbers = read_engine_metrics({"completion_tokens": 16}, {"generation_time_ms": 150.0})
    assert numbers.tokens_per_second == pytest.approx(100.0)


def test_a_speculated_answer_without_a_draft_has_counts_and_no_rates() -> None:
    numbers = read_speculation(
        num_spec_steps=0, num_draft_tokens=0, num_accepted_draft_tokens=0, acceptance_histogram=[0, 0, 0, 0]
    )
    assert (numbers.steps, numbers.draft_tokens, numbers.accepted_tokens) == (0, 0, 0)
    assert numbers.accepted_by_position == (0, 0, 0)
    assert (numbers.acceptance_rate, numbers.mean_acceptance_length) == (None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_accepted_draft_tokens": 18},
        {"num_accepted_draft_tokens": None},
        {"num_draft_tokens": 5},
        {"num_draft_tokens": True},
        {"num_spec_steps": 0},
        {"num_spec_steps": "6"},
        {"acceptance_histogram": [2, 1, 1, 3]},
        {"acceptance_histogram": [2, 1, 1, None]},
        {"acceptance_histogram": "2112"},
    ],
    ids=str,
)
def test_counts_that_contradict_each_other_are_no_evidence(changes: dict[str, Any]) -> None:
    numbers = read_speculation(**changes)
    assert (numbers.steps, numbers.draft_tokens, numbers.accepted_tokens) == (None, None, None)
    assert (numbers.acceptance_rate, numbers.accepted_by_position) == (None, None)
    assert numbers.tokens_per_second == 50.0


def test_counts_without_a_histogram_are_read() -> None:
    numbers = read_speculation(acceptance_histogram=None)
    assert (numbers.steps, numbers.accepted_by_position) == (6, None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(USAGE, json_values)) | json_values,
    st.fixed_dictionaries(
        {"speculative_decoding": st.fixed_dictionaries({}, optional=dict.fromkeys(SPECULATION, json_values))},
        optional=dict.fromkeys(METRICS, json_values),
    )
    | json_values,
)
def test_no_answer_makes_it_raise(usage: object, metrics: object) -> None:
    numbers = read_engine_metrics(usage, metrics)
    assert numbers.acceptance_rate is None or 0 <= numbers.acceptance_rate <= 1
    assert numbers.tokens_per_second is None or numbers.tokens_per_second >= 0
