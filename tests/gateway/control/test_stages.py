"""Stage records over REST, and what they add up to."""

from typing import Any

import orjson
import pytest

from gateway.evidence.multiplier import MINIMUM_BLOCKS
from gateway.telemetry.record import StageRecord
from tests.fakes.control import ControlPlane, error_of
from tests.fakes.records import engine_block, stage

STAGES, SUMMARY = "/admin/v1/stages", "/admin/v1/summary"
CONTROL = {"action": "control", "reason": "control_block", "draft_tokens": None, "accepted_tokens": None}
SHADOW = {"mode": "shadow", "executor": None, "tokens_per_second": None}


async def test_records_are_shown_whole_and_newest_first(control: ControlPlane) -> None:
    records = [stage(request_id="old", at=1.0), stage(request_id="new", at=2.0)]
    await control.keep(*records)
    shown = await control.get(STAGES)
    assert shown == {"stages": [orjson.loads(orjson.dumps(record)) for record in reversed(records)]}


async def test_a_query_chooses_records(control: ControlPlane) -> None:
    await control.keep(
        stage(request_id="a", at=1.0, **SHADOW, action="skip"), stage(request_id="b", at=2.0, model="n")
    )
    for query, found in (
        ({"mode": "shadow"}, "a"),
        ({"action": "speculate"}, "b"),
        ({"model": "n"}, "b"),
        ({"request_id": "a"}, "a"),
        ({"after": 1.5}, "b"),
        ({"limit": 1}, "b"),
    ):
        shown = await control.get(STAGES, **query)
        assert [record["request_id"] for record in shown["stages"]] == [found], query


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"limit": 1001}, "limit is '1001'. Allowed: at most 1000"),
        ({"limit": 0}, "at least 1"),
        ({"limit": "many"}, "limit"),
        ({"mode": "of"}, "Did you mean 'off'?"),
        ({"action": "nothing"}, "would_speculate"),
        ({"after": "nan"}, "after"),
        ({"lmit": 1}, "Did you mean 'limit'?"),
    ],
)
async def test_a_query_that_is_not_taken_says_what_is_allowed(
    control: ControlPlane, query: dict[str, Any], words: str
) -> None:
    assert words in error_of(await control.http.get(STAGES, params=query), 400)["message"]


async def test_an_empty_store_adds_up_to_nothing(control: ControlPlane) -> None:
    assert await control.get(SUMMARY) == {
        "requests": {},
        "buckets": [],
        "shadow_skipped": {},
        "bypassed": {},
    }


async def test_requests_are_counted_by_mode_and_action_and_reason(control: ControlPlane) -> None:
    skip = {**SHADOW, "action": "skip"}
    await control.keep(
        stage(**SHADOW, action="would_speculate"),
        stage(**skip, reason="no_usage"),
        stage(**skip, reason="no_usage"),
        stage(**skip, reason="queue_full"),
        stage(),
        stage(**CONTROL),
        stage(action="bypass", reason="outside_share"),
    )
    summary = await control.get(SUMMARY)
    assert summary["requests"] == {
        "shadow": {"would_speculate": 1, "skip": 3},
        "prod": {"speculate": 1, "control": 1, "bypass": 1},
    }
    assert summary["shadow_skipped"] == {"no_usage": 2, "queue_full": 1}
    assert summary["bypassed"] == {"outside_share": 1}


async def test_a_bucket_has_its_rates_from_sums_and_not_from_rates(control: ControlPlane) -> None:
    await control.keep(
        stage(draft_tokens=10, accepted_tokens=10, decode_tokens=100, decode_seconds=1.0),
        stage(draft_tokens=30, accepted_tokens=0, decode_tokens=100, decode_seconds=3.0),
    )
    (bucket,) = (await control.get(SUMMARY))["buckets"]
    assert bucket == {
        "model": "m",
        "backend": "b",
        "workload": "",
        "drafter": "ngram",
        "executor": "in_engine",
        "mode": "prod",
        "action": "speculate",
        "k": 3,
        "temperature_band": "0.5-1",
        "load_band": "1",
        "control_backend": "b",
        "n": 2,
        "looping": 0,
        "draft_tokens": 40,
        "accepted_tokens": 10,
        "acceptance_rate": 0.25,
        "tokens_per_second": 50.0,
        "multiplier": bucket["multiplier"],
        "k_curve": None,
        "compared": None,
    }


def arm(count: int, *, first_block: int, **fields: Any) -> list[StageRecord]:
    """A record in each of so many blocks."""
    return [stage(block_at=60.0 * (first_block + number), **fields) for number in range(count)]


async def multiplier_in(control: ControlPlane) -> dict[str, Any]:
    buckets = {bucket["action"]: bucket for bucket in (await control.get(SUMMARY))["buckets"]}
    found: dict[str, Any] = buckets["speculate"]["multiplier"]
    return found


PLAIN = {**CONTROL, "decode_tokens": 20, "decode_seconds": 1.0}


async def test_a_multiplier_has_its_interval_and_sample_sizes(control: ControlPlane) -> None:
    spec = [
        stage(block_at=60.0 * (10 + i), decode_tokens=40, decode_seconds=1.0 + i / 100)
        for i in range(MINIMUM_BLOCKS)
    ]
    await control.keep(*spec, *arm(MINIMUM_BLOCKS + 1, first_block=10, **PLAIN))
    multiplier = await multiplier_in(control)
    assert multiplier["value"] == pytest.approx(2 * 5 / 5.1)
    assert 1.9 < multiplier["low"] <= multiplier["value"] <= multiplier["high"] < 2.0
    assert (multiplier["n_spec"], multiplier["n_control"]) == (MINIMUM_BLOCKS, MINIMUM_BLOCKS + 1)
    assert (multiplier["blocks_spec"], multiplier["blocks_control"]) == (MINIMUM_BLOCKS, MINIMUM_BLOCKS + 1)
    assert (multiplier["control_kind"], multiplier["reason"]) == ("switchback", None)
    summary = await control.get(SUMMARY)
    (plain,) = (bucket for bucket in summary["buckets"] if bucket["action"] == "control")
    assert plain["multiplier"]["value"] is None


async def test_below_the_minimum_sample_the_multiplier_is_null_and_says_why(control: ControlPlane) -> None:
    await control.keep(*arm(5, first_block=10), *arm(1, first_block=10, **PLAIN))
    multiplier = await multiplier_in(control)
    assert (multiplier["value"], multiplier["low"], multiplier["high"]) == (None, None, None)
    assert multiplier["reason"] == "needs 5 requests in each arm, has 5 speculated and 1 control"


async def test_many_answers_of_few_blocks_are_too_few(control: ControlPlane) -> None:
    many = [stage(block_at=60.0 * (10 + number % 4)) for number in range(40)]
    await control.keep(*many, *arm(5, first_block=10, **PLAIN))
    multiplier = await multiplier_in(control)
    assert multiplier["value"] is None
    assert multiplier["reason"] == "needs requests in 5 blocks of each arm, has 4 speculated and 5 control"


async def test_the_interval_is_resampled_by_block_and_not_by_answer(control: ControlPlane) -> None:
    """Blocks differ and answers within one do not: more answers of the same blocks make nothing surer."""

    def blocks(answers: int) -> list[StageRecord]:
        return [
            stage(block_at=60.0 * (10 + block), decode_tokens=20 + 10 * block, decode_seconds=1.0)
            for block in range(5)
            for _ in range(answers)
        ]

    await control.keep(*blocks(1), *arm(5, first_block=10, **PLAIN))
    few = await multiplier_in(control)
    await control.keep(*blocks(30))
    many = await multiplier_in(control)
    assert many["n_spec"] == 155
    assert (many["low"], many["high"]) == (few["low"], few["high"])


async def test_both_arms_are_of_the_same_time(control: ControlPlane) -> None:
    await control.keep(
        *arm(5, first_block=1, decode_tokens=1000, decode_seconds=1.0),
        *arm(5, first_block=20, decode_tokens=40, decode_seconds=1.0),
        *arm(5, first_block=20, **PLAIN),
    )
    assert (await multiplier_in(control))["value"] == 2.0


async def test_first_byte_and_whole_answer_stand_beside_the_multiplier(control: ControlPlane) -> None:
    await control.keep(
        *arm(5, first_block=10, first_byte_seconds=0.6, total_seconds=2.0, completion_tokens=40),
        *arm(5, first_block=10, **PLAIN, first_byte_seconds=0.5, total_seconds=2.0, completion_tokens=20),
    )
    multiplier = await multiplier_in(control)
    assert multiplier["ttft_ratio"] == pytest.approx(1.2)
    assert multiplier["e2e_ratio"] == pytest.approx(0.5)


async def test_answers_that_are_not_streamed_have_no_first_byte_to_compare(control: ControlPlane) -> None:
    await control.keep(*arm(5, first_block=10, first_byte_seconds=None), *arm(5, first_block=10, **PLAIN))
    multiplier = await multiplier_in(control)
    assert multiplier["value"] == 1.0
    assert multiplier["ttft_ratio"] is None


async def test_what_the_engine_made_in_the_blocks_of_each_arm_stands_beside_it(
    control: ControlPlane,
) -> None:
    await control.keep(
        *arm(5, first_block=10), *arm(3, first_block=5, **PLAIN), *arm(3, first_block=20, **PLAIN)
    )
    await control.store.engine_blocks.add(
        [
            engine_block(at=600.0, tokens=900.0),
            engine_block(at=660.0, tokens=600.0),
            engine_block(at=1200.0, tokens=300.0),
            engine_block(at=1800.0, tokens=9000.0),
            engine_block(at=600.0, tokens=9000.0, backend="other"),
        ]
    )
    rates = (await multiplier_in(control))["engine_tokens_per_second"]
    assert rates == {"spec": 25.0, "control": 10.0}


async def test_replicas_are_compared_in_the_blocks_in_which_both_answered(control: ControlPlane) -> None:
    at_replica = {**PLAIN, "backend": "plain", "control_backend": "plain", "control_kind": "replica"}
    spec = {"control_backend": "plain", "decode_tokens": 40, "decode_seconds": 1.0}
    await control.keep(
        *arm(6, first_block=10, **spec),
        *arm(3, first_block=16, **{**spec, "decode_tokens": 4000}),
        *arm(6, first_block=10, **at_replica),
        *arm(3, first_block=30, **{**at_replica, "decode_tokens": 2000}),
    )
    await control.store.engine_blocks.add(
        [engine_block(at=600.0, tokens=900.0), engine_block(at=600.0, tokens=600.0, backend="plain")]
    )
    multiplier = await multiplier_in(control)
    assert multiplier["control_kind"] == "replica"
    assert (multiplier["value"], multiplier["blocks_spec"], multiplier["blocks_control"]) == (2.0, 6, 6)
    assert multiplier["engine_tokens_per_second"] == {"spec": 30.0, "control": 20.0}


async def test_what_may_not_be_compared_enters_no_multiplier(control: ControlPlane) -> None:
    await control.keep(
        *arm(5, first_block=10), *arm(5, first_block=10, **CONTROL, multiplier_reason="spans_a_switch")
    )
    assert (await multiplier_in(control))["n_control"] == 0


async def test_shadow_curves_are_merged_in_their_bucket(control: ControlPlane) -> None:
    point = {
        "passes": 10,
        "steps": 5,
        "draft_tokens": 5,
        "accepted_tokens": 2,
        "tokens_per_pass": 1.2,
        "acceptance_rate": 0.4,
        "passes_by_drafts": {"0": 5, "1": 5},
    }
    shadow = {**SHADOW, "action": "would_speculate", "k_curve": {"1": point}}
    other = {"suffix": {"curve": {"1": {**point, "accepted_tokens": 3}}}, "draft_model": {"reason": "away"}}
    await control.keep(stage(**shadow), stage(**shadow, compared=other))
    (bucket,) = (await control.get(SUMMARY))["buckets"]
    assert bucket["k_curve"] == {
        "1": {
            "passes": 20,
            "steps": 10,
            "draft_tokens": 10,
            "accepted_tokens": 4,
            "tokens_per_pass": 1.2,
            "acceptance_rate": 0.4,
            "passes_by_drafts": {"0": 10, "1": 10},
        }
    }
    assert list(bucket["compared"]) == ["suffix"]
    assert bucket["compared"]["suffix"]["1"]["acceptance_rate"] == 0.6
    assert bucket["multiplier"]["value"] is None
