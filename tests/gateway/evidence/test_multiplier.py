import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evidence.multiplier import (
    MINIMUM_SAMPLE,
    Bucket,
    MultiplierBook,
    Sample,
    Speed,
    bootstrap_multiplier,
    paired_multiplier,
    temperature_band,
)
from gateway.policy.blocks import Block

Pair = tuple[Speed, Speed]

speeds = st.tuples(st.integers(16, 4096), st.floats(0.01, 600))
arms = st.lists(speeds, min_size=1, max_size=8)
pairs = st.lists(st.tuples(speeds, speeds), min_size=1, max_size=8)


def bucket(**changes: Any) -> Bucket:
    fields: dict[str, Any] = {
        "model": "m1",
        "backend": "b1",
        "control_backend": "b1",
        "executor": "in_engine",
        "drafter": "ngram",
        "k": 5,
        "workload": "code",
        "temperature_band": "greedy",
        "load_band": "1",
    }
    return Bucket(**(fields | changes))


def filled(book: MultiplierBook, where: Bucket, *, spec: int, control: int) -> MultiplierBook:
    """A block for each answer."""
    for number in range(spec):
        book.observe(where, "spec", block(number), 100, 1.0)
    for number in range(control):
        book.observe(where, "control", block(1000 + number), 100, 2.0)
    return book


def block(number: int) -> Block:
    return Block(60.0 * number, 60.0)


def test_the_multiplier_is_speculated_speed_over_control_speed() -> None:
    estimate = filled(MultiplierBook(), bucket(), spec=6, control=5).estimate(bucket())

    assert (estimate.value, estimate.reason) == (2.0, None)
    assert (estimate.spec, estimate.control) == (Sample(answers=6, blocks=6), Sample(answers=5, blocks=5))


def test_speeds_are_sums_of_tokens_over_sums_of_seconds_not_means_of_ratios() -> None:
    book = filled(MultiplierBook(), bucket(), spec=0, control=5)
    for number, tokens in enumerate([100, 100, 100, 100, 1000]):
        book.observe(bucket(), "spec", block(number), tokens, 1.0)

    assert book.estimate(bucket()).value == pytest.approx((1400 / 5) / 50)


@pytest.mark.parametrize(("spec", "control"), [(0, 0), (MINIMUM_SAMPLE, 4), (4, MINIMUM_SAMPLE)])
def test_below_the_minimum_sample_there_is_a_reason_instead_of_a_value(spec: int, control: int) -> None:
    estimate = filled(MultiplierBook(), bucket(), spec=spec, control=control).estimate(bucket())

    assert estimate.value is None
    assert estimate.reason == f"needs 5 requests in each arm, has {spec} speculated and {control} control"


def test_answers_of_one_block_are_one_draw_however_many_they_are() -> None:
    book = filled(MultiplierBook(), bucket(), spec=4, control=5)
    for _ in range(50):
        book.observe(bucket(), "spec", block(0), 100, 1.0)

    estimate = book.estimate(bucket())

    assert estimate.spec == Sample(answers=54, blocks=4)
    assert estimate.value is None
    assert estimate.reason == "needs requests in 5 blocks of each arm, has 4 speculated and 5 control"


@pytest.mark.parametrize("change", [{"drafter": "suffix"}, {"k": 3}])
def test_control_is_shared_by_drafters_and_ks(change: dict[str, Any]) -> None:
    book = filled(MultiplierBook(), bucket(), spec=5, control=5)
    filled(book, bucket(**change), spec=5, control=0)

    assert book.estimate(bucket(**change)).value == 2.0


@pytest.mark.parametrize(
    "change",
    [
        {"model": "m2"},
        {"control_backend": "b2"},
        {"workload": "chat"},
        {"temperature_band": "0-0.5"},
        {"load_band": "2-4"},
    ],
)
def test_control_is_not_shared_by_anything_that_changes_plain_speed(change: dict[str, Any]) -> None:
    book = filled(MultiplierBook(), bucket(), spec=5, control=5)
    filled(book, bucket(**change), spec=5, control=0)

    assert book.estimate(bucket(**change)).control.answers == 0


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(0, 1.0), (10, 0.0), (10, -1.0), (10, math.nan), (10, math.inf)]
)
def test_an_observation_without_tokens_or_time_changes_nothing(tokens: int, seconds: float) -> None:
    book = MultiplierBook()
    book.observe(bucket(), "spec", block(0), tokens, seconds)

    assert book.estimate(bucket()).spec.answers == 0


def test_a_bucket_remembers_only_its_latest_blocks() -> None:
    book = filled(MultiplierBook(window=5), bucket(), spec=50, control=5)
    for number in range(100, 105):
        book.observe(bucket(), "spec", block(number), 300, 1.0)

    estimate = book.estimate(bucket())
    assert (estimate.value, estimate.spec.blocks) == (6.0, 5)


def test_the_bucket_that_was_quiet_longest_is_forgotten_first() -> None:
    book = MultiplierBook(max_buckets=2)
    for k in (1, 2, 1, 3):
        book.observe(bucket(k=k), "spec", block(0), 100, 1.0)

    assert [book.estimate(bucket(k=k)).spec.answers for k in (1, 2, 3)] == [2, 0, 1]


@pytest.mark.parametrize(
    ("temperature", "band"),
    [
        (0, "greedy"),
        (0.2, "0-0.5"),
        (0.5, "0-0.5"),
        (0.8, "0.5-1"),
        (1, "0.5-1"),
        (None, "0.5-1"),
        (1.3, "above 1"),
    ],
)
def test_temperatures_fall_into_bands(temperature: float | None, band: str) -> None:
    assert temperature_band(temperature) == band


def test_a_paired_multiplier_by_hand() -> None:
    interval = paired_multiplier([((90, 1.0), (90, 3.0)), ((90, 2.0), (90, 3.0))], Random(1))

    assert interval == pytest.approx((2.0, 1.5, 3.0))


def test_equal_arms_give_exactly_one() -> None:
    assert bootstrap_multiplier([(64, 1.5)] * 6, [(64, 1.5)] * 9, Random(1)) == (1.0, 1.0, 1.0)


@pytest.mark.slow
@given(arms, arms, st.integers())
def test_the_interval_is_ordered_and_inside_what_single_answers_allow(
    spec: list[Speed], control: list[Speed], seed: int
) -> None:
    value, low, high = bootstrap_multiplier(spec, control, Random(seed))

    rates = [[tokens / seconds for tokens, seconds in arm] for arm in (spec, control)]
    least, most = min(rates[0]) / max(rates[1]), max(rates[0]) / min(rates[1])
    assert low <= high
    for number in (value, low, high):
        assert least * (1 - 1e-9) <= number <= most * (1 + 1e-9)


@pytest.mark.slow
@given(pairs, st.integers(), st.floats(0.1, 10))
def test_slowing_every_plain_answer_scales_the_whole_interval(
    sample: list[Pair], seed: int, factor: float
) -> None:
    slowed = [(spec, (tokens, seconds * factor)) for spec, (tokens, seconds) in sample]

    before, after = paired_multiplier(sample, Random(seed)), paired_multiplier(slowed, Random(seed))

    assert after == pytest.approx(tuple(factor * number for number in before))


@pytest.mark.slow
@given(pairs, st.integers())
def test_the_same_randomness_gives_the_same_interval(sample: list[Pair], seed: int) -> None:
    assert paired_multiplier(sample, Random(seed)) == paired_multiplier(sample, Random(seed))


def test_pairing_takes_out_what_differs_between_prompts() -> None:
    """Answers of very different length, each exactly twice as fast: pairing leaves no uncertainty."""
    sample = [((n, n / 20), (n, n / 10)) for n in (20, 40, 400)]

    assert paired_multiplier(sample, Random(1)) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(
    ("spec", "control", "named"), [([], [(1, 1.0)], "spec"), ([(1, 1.0)], [], "control")]
)
def test_an_empty_arm_is_refused_by_name(spec: list[Speed], control: list[Speed], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} is empty"):
        bootstrap_multiplier(spec, control, Random(1))


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs is empty"):
        paired_multiplier([], Random(1))
