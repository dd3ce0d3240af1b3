import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.predict import predicted_multiplier

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
