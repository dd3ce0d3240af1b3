import pytest

from gateway.evidence.loop_costs import Calibration, CostKey, costs_in_words, load_band

CALIBRATION = Calibration(
    key=CostKey(backend="gpu-1", model="m", strategy="scored", drafter="ngram", band="1"),
    measured_at=0.0,
    expires_at=3600.0,
    context_tokens=200,
    plain_seconds=0.070,
    verify_seconds={8: 0.090, 0: 0.072, 3: 0.080},
    draft_seconds={0: 0.001, 3: 0.002, 8: 0.004},
)


@pytest.mark.parametrize(
    ("running", "band"),
    [(1, "1"), (2, "2-4"), (4, "2-4"), (5, "5-16"), (16, "5-16"), (17, "17+"), (1000, "17+")],
)
def test_load_is_told_in_bands(running: int, band: str) -> None:
    assert load_band(running) == band


def test_a_step_costs_its_call_its_drafting_and_the_way() -> None:
    assert CALIBRATION.pass_seconds == pytest.approx({1: 0.073, 4: 0.082, 9: 0.094})


def test_the_best_that_a_k_could_come_to() -> None:
    assert CALIBRATION.best(8) == pytest.approx(9 * 0.070 / 0.094)
    assert CALIBRATION.best(3) == pytest.approx(4 * 0.070 / 0.082)


def test_its_numbers_are_told_in_one_line() -> None:
    assert costs_in_words(CALIBRATION) == (
        "scored with ngram at load 1: a plain token 70.0 ms; "
        "a step by drafts: 73.0 ms with 0, 82.0 ms with 3, 94.0 ms with 8"
    )
