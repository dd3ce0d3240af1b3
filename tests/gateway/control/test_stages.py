"""Stage records over REST, and what they add up to."""

from typing import Any

import orjson
import pytest

from gateway.evidence.multiplier import MINIMUM_SAMPLE
from tests.fakes.control import ControlPlane, error_of
from tests.fakes.records import stage

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


async def test_a_multiplier_has_its_interval_and_sample_sizes(control: ControlPlane) -> None:
    spec = [stage(decode_tokens=40, decode_seconds=1.0 + i / 100) for i in range(MINIMUM_SAMPLE)]
    plain = [stage(**CONTROL, decode_tokens=20, decode_seconds=1.0) for _ in range(MINIMUM_SAMPLE + 1)]
    await control.keep(*spec, *plain)
    buckets = {bucket["action"]: bucket for bucket in (await control.get(SUMMARY))["buckets"]}
    multiplier = buckets["speculate"]["multiplier"]
    assert multiplier["value"] == pytest.approx(2 * 5 / 5.1)
    assert 1.9 < multiplier["low"] <= multiplier["value"] <= multiplier["high"] < 2.0
    assert (multiplier["n_spec"], multiplier["n_control"]) == (MINIMUM_SAMPLE, MINIMUM_SAMPLE + 1)
    assert (multiplier["control_kind"], multiplier["reason"]) == ("switchback", None)
    assert buckets["control"]["multiplier"]["value"] is None


async def test_below_the_minimum_sample_the_multiplier_is_null_and_says_why(control: ControlPlane) -> None:
    await control.keep(*[stage() for _ in range(MINIMUM_SAMPLE)], stage(**CONTROL))
    buckets = {bucket["action"]: bucket for bucket in (await control.get(SUMMARY))["buckets"]}
    multiplier = buckets["speculate"]["multiplier"]
    assert (multiplier["value"], multiplier["low"], multiplier["high"]) == (None, None, None)
    assert multiplier["reason"] == "needs 5 requests in each arm, has 5 speculated and 1 control"


async def test_what_may_not_be_compared_enters_no_multiplier(control: ControlPlane) -> None:
    await control.keep(
        *[stage() for _ in range(MINIMUM_SAMPLE)],
        *[stage(**CONTROL, multiplier_reason="spans_a_switch") for _ in range(MINIMUM_SAMPLE)],
    )
    buckets = {bucket["action"]: bucket for bucket in (await control.get(SUMMARY))["buckets"]}
    assert buckets["speculate"]["multiplier"]["n_control"] == 0


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
