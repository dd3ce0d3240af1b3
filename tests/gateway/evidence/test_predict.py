from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.predict import Replayed, best_multiplier, predicted_interval, predicted_multiplier

LINEAR = {1: 0.020, 9: 0.028}
counts = st.dictionaries(st.integers(0, 8), st.integers(1, 500), min_size=1)


def test_by_hand() -> None:
    """30 plain passes of 20 ms against 4 plain ones and 6 of 25 ms."""
    prediction = predicted_multiplier(30, {0: 4, 5: 6}, {1: 0.020, 6: 0.025})

    assert prediction.value == pytest.approx(0.600 / 0.230)
    assert prediction.reason is None


def test_an_answer_without_any_draft_is_predicted_to_gain_nothing() -> None:
    assert predicted_multiplier(30, {0: 30}, {1: 0.020}).value == 1.0


def test_a_width_between_measured_ones_is_interpolated() -> None:
    assert predicted_multiplier(10, {4: 5}, LINEAR).value == pytest.approx(0.200 / (5 * 0.024))


@pytest.mark.parametrize(
    ("measured", "unknown"), [({1: 0.02, 5: 0.03}, "6"), ({2: 0.02, 6: 0.03}, "1"), ({}, "1, 6")]
)
def test_a_width_outside_the_measured_ones_is_refused_by_name(
    measured: dict[int, float], unknown: str
) -> None:
    prediction = predicted_multiplier(30, {5: 6}, measured)

    assert prediction.value is None
    assert prediction.reason is not None
    assert prediction.reason.startswith(f"no pass time for {unknown} tokens per pass")


def test_a_width_that_no_pass_uses_needs_no_time() -> None:
    assert predicted_multiplier(30, {0: 30, 5: 0}, {1: 0.02}).value == 1.0


@pytest.mark.parametrize(("tokens", "passes"), [(0, {0: 3}), (5, {}), (5, {0: 0})])
def test_nothing_replayed_predicts_nothing(tokens: int, passes: dict[int, int]) -> None:
    prediction = predicted_multiplier(tokens, passes, LINEAR)

    assert (prediction.value, prediction.reason) == (None, "no decode pass was replayed")


@given(counts, st.integers(1, 4000))
def test_with_free_drafts_the_multiplier_is_tokens_per_pass(passes: dict[int, int], tokens: int) -> None:
    prediction = predicted_multiplier(tokens, passes, {1: 0.02, 9: 0.02})

    assert prediction.value == pytest.approx(tokens / sum(passes.values()))


@given(counts, st.integers(1, 4000), st.floats(0.001, 1000))
def test_only_ratios_of_pass_times_matter(passes: dict[int, int], tokens: int, factor: float) -> None:
    slower = {width: seconds * factor for width, seconds in LINEAR.items()}

    assert predicted_multiplier(tokens, passes, slower).value == pytest.approx(
        predicted_multiplier(tokens, passes, LINEAR).value
    )


def test_a_plain_pass_may_be_another_call_than_a_pass_without_drafts() -> None:
    """30 tokens at 18 ms, against 10 passes of 20 ms that had nothing to draft."""
    prediction = predicted_multiplier(30, {0: 10}, {1: 0.020}, plain_seconds=0.018)

    assert prediction.value == pytest.approx(0.540 / 0.200)


def test_the_best_is_at_the_length_that_pays_most() -> None:
    """One token for 21 ms, three for 40 ms, six for 150 ms, against 20 ms each."""
    steps = {1: 0.021, 3: 0.040, 6: 0.150}

    assert best_multiplier(5, steps, 0.020) == pytest.approx(3 * 0.020 / 0.040)
    assert best_multiplier(0, steps, 0.020) == pytest.approx(0.020 / 0.021)


@given(st.dictionaries(st.integers(0, 8), st.integers(1, 500), min_size=1), st.floats(0.001, 0.1))
def test_no_replay_predicts_more_than_the_best(passes: dict[int, int], plain: float) -> None:
    everything_accepted = sum((1 + drafts) * count for drafts, count in passes.items())
    predicted = predicted_multiplier(everything_accepted, passes, LINEAR, plain)

    assert predicted.value is not None
    assert predicted.value <= best_multiplier(8, LINEAR, plain) * (1 + 1e-9)


def test_an_interval_of_several_answers_holds_their_common_multiplier() -> None:
    slow, fast = Replayed(30, {0: 30}), Replayed(30, {5: 6})
    interval = predicted_interval([slow, fast] * 10, {1: 0.020, 6: 0.025}, 0.020, Random(1))

    assert interval.value == pytest.approx(1.2 / (0.6 + 0.15))
    assert 1.0 < interval.low < interval.value < interval.high < 4.0


def test_answers_that_are_alike_leave_no_doubt() -> None:
    interval = predicted_interval([Replayed(30, {5: 6})] * 5, {1: 0.020, 6: 0.025}, 0.020, Random(1))

    assert interval.low == interval.value == interval.high == pytest.approx(4.0)
