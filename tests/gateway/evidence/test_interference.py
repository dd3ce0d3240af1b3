"""Why control is by block: requests that share a batch share every forward.

A batch of speculated requests makes each forward longer, for the plain ones in it too. A plain request beside
them is therefore no picture of an engine without speculation, and the comparison flatters.
"""

from __future__ import annotations

from random import Random

import pytest

from gateway.evidence.multiplier import Arm, Bucket, MultiplierBook
from gateway.policy.blocks import block_at, in_control_block, spans_a_switch
from gateway.policy.model import Control
from tests.fakes.batching_engine import Answer, BatchingEngine, Speculates

CONTROL = Control(block=60, fraction=0.2)
BLOCKS, SEEDS = 40, 200
CROWDED, ALONE = BatchingEngine(clients=16), BatchingEngine(clients=1, accepted=1.0)
BUCKET = Bucket(
    model="m",
    backend="b",
    control_backend="b",
    executor="in_engine",
    drafter="ngram",
    k=5,
    workload="chat",
    temperature_band="greedy",
    load_band="5-16",
)


def start_of(seed: int) -> float:
    """Each seed has blocks of its own."""
    return 60.0 * BLOCKS * seed


def served(engine: BatchingEngine, speculates: Speculates, seed: int) -> list[Answer]:
    return list(engine.serve(speculates, start=start_of(seed), seconds=60.0 * BLOCKS, rng=Random(seed)))


def switchback(engine: BatchingEngine, seed: int) -> float:
    """The multiplier that the gateway reports: whole blocks, and what spans a switch left out."""
    book = MultiplierBook()
    for answer in served(engine, lambda at: not in_control_block("b", "m", at, CONTROL), seed):
        if not spans_a_switch("b", "m", answer.begun, answer.ended, CONTROL):
            arm: Arm = "spec" if answer.speculated else "control"
            block = block_at(answer.begun, CONTROL)
            book.observe(BUCKET, arm, block, round(answer.tokens), answer.seconds)
    estimate = book.estimate(BUCKET)
    assert estimate.value is not None, estimate.reason
    return estimate.value


def request_level(engine: BatchingEngine, seed: int) -> float:
    """What a coin for each request would report."""
    coin = Random(f"coin {seed}")
    answers = served(engine, lambda _: coin.random() >= CONTROL.fraction, seed)
    rates = []
    for speculated in (True, False):
        arm = [answer for answer in answers if answer.speculated is speculated]
        rates.append(sum(answer.tokens for answer in arm) / sum(answer.seconds for answer in arm))
    return rates[0] / rates[1]


def truth(engine: BatchingEngine) -> float:
    return engine.throughput(speculated=True) / engine.throughput(speculated=False)


@pytest.mark.slow
def test_where_request_level_control_reports_a_gain_ours_reports_the_engines_loss() -> None:
    """The sign is right in at least 95 % of the seeds."""
    assert truth(CROWDED) < 0.7
    ours = [switchback(CROWDED, seed) for seed in range(SEEDS)]
    assert sum(value < 1 for value in ours) >= 0.95 * SEEDS
    assert sum(ours) / SEEDS == pytest.approx(truth(CROWDED), rel=0.05)


def test_request_level_control_reports_a_gain_while_the_engine_gets_slower() -> None:
    flattered = [request_level(CROWDED, seed) for seed in range(5)]
    assert min(flattered) > 1.5


def test_where_nobody_shares_a_forward_both_agree() -> None:
    """At concurrency 1 there is nobody to slow."""
    for seed in range(5):
        assert switchback(ALONE, seed) == pytest.approx(truth(ALONE), rel=0.2)
        assert request_level(ALONE, seed) == pytest.approx(truth(ALONE), rel=0.2)
