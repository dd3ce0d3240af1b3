"""Stage records: kept whole, found again, summed."""

from typing import Any

import orjson
import pytest
from sqlalchemy.dialects import postgresql

from gateway.evidence.multiplier import Speed, temperature_band
from gateway.policy.blocks import Block
from gateway.store.curves import summed_curves
from gateway.store.model import ArmBlock, StageGroup, StageQuery
from gateway.store.stages import StageRows, group_key, row_of
from gateway.store.store import Store
from tests.fakes.records import stage


def curve(**counts: Any) -> dict[str, dict[str, Any]]:
    point = {
        "passes": 20,
        "steps": 10,
        "draft_tokens": 10,
        "accepted_tokens": 4,
        "tokens_per_pass": 1.2,
        "acceptance_rate": 0.4,
        "passes_by_drafts": {"0": 10, "1": 10},
    }
    return {"1": {**point, **counts}}


async def keep(store: Store, *records: Any) -> None:
    await store.stages.add([row_of(record) for record in records])


async def found(stages: StageRows, **query: Any) -> list[str]:
    return [record["request_id"] for record in await stages.find(StageQuery(**query))]


async def test_a_record_comes_back_as_the_json_that_it_is(store: Store) -> None:
    record = stage(
        k_curve=curve(), compared={"suffix": {"steps": 3}}, tenant="søk", traceparent="00-ab-cd-01"
    )
    await keep(store, record)
    assert await store.stages.find(StageQuery()) == [orjson.loads(orjson.dumps(record))]


async def test_records_come_newest_first_and_limited(store: Store) -> None:
    await keep(store, *(stage(request_id=f"r{at}", at=float(at)) for at in (3, 1, 2)))
    assert await found(store.stages) == ["r3", "r2", "r1"]
    assert await found(store.stages, limit=2) == ["r3", "r2"]


async def test_records_of_one_moment_come_in_reverse_order_of_writing(store: Store) -> None:
    await keep(store, stage(request_id="a"), stage(request_id="b"))
    assert await found(store.stages) == ["b", "a"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"mode": "prod"}, ["p"]),
        ({"action": "skip"}, ["s"]),
        ({"model": "n"}, ["s"]),
        ({"request_id": "p"}, ["p"]),
        ({"after": 1.0}, ["p"]),
        ({"mode": "prod", "model": "n"}, []),
    ],
)
async def test_each_condition_of_a_query_counts(
    store: Store, query: dict[str, Any], expected: list[str]
) -> None:
    await keep(
        store,
        stage(request_id="s", at=1.0, mode="shadow", action="skip", model="n"),
        stage(request_id="p", at=2.0),
    )
    assert await found(store.stages, **query) == expected


def test_a_record_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(TypeError):
        row_of(stage(model="\ud800"))


async def test_a_batch_is_kept_whole_or_not_at_all(store: Store) -> None:
    broken = {**row_of(stage()), "mode": None}
    with pytest.raises(Exception, match=r"(?i)not.null"):
        await store.stages.add([row_of(stage()), broken])
    assert await found(store.stages) == []


async def test_a_record_that_is_kept_is_known_again(store: Store) -> None:
    kept = row_of(stage(request_id="r", at=1_700_000_000.123456))
    await store.stages.add([kept])
    assert await store.stages.keeps(kept)
    assert not await store.stages.keeps({**kept, "at": 1_700_000_000.123457})
    assert not await store.stages.keeps({**kept, "request_id": "s"})


async def test_counts_are_summed_over_comparable_records_only(store: Store) -> None:
    await keep(
        store,
        stage(draft_tokens=10, accepted_tokens=4),
        stage(draft_tokens=20, accepted_tokens=5),
        stage(draft_tokens=100, accepted_tokens=100, workload="code"),
        stage(draft_tokens=100, accepted_tokens=100, temperature=0.0),
        stage(draft_tokens=100, accepted_tokens=100, k=8),
    )
    groups = await store.stages.groups()
    assert [group.n for group in groups] == [2, 1, 1, 1]
    assert (groups[0].draft_tokens, groups[0].accepted_tokens) == (30, 9)
    assert groups[0].temperature_band == temperature_band(None)


async def test_what_was_not_measured_is_none_and_not_zero(store: Store) -> None:
    await keep(store, stage(draft_tokens=None, accepted_tokens=None, tokens_per_second=None))
    (group,) = await store.stages.groups()
    assert (group.draft_tokens, group.accepted_tokens, group.timed_tokens) == (None, None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens_per_second": None},
        {"multiplier_reason": "spans_a_switch"},
        {"reason": "malformed_metrics"},
    ],
)
async def test_a_speed_that_may_not_be_compared_enters_no_sum(store: Store, changes: dict[str, Any]) -> None:
    await keep(store, stage(), stage(**changes))
    groups = await store.stages.groups()
    assert [(group.timed_tokens, group.timed_seconds) for group in groups] == [(30, 1.5)]
    assert await speeds(store, groups[0], control=False) == [(30, 1.5)]


CONTROL = {"action": "control", "reason": "control_block", "decode_tokens": 40, "decode_seconds": 4.0}


async def speeds(store: Store, group: StageGroup, *, control: bool, newest: int = 10) -> list[Speed]:
    found = await store.stages.blocks(group, control=control, newest=newest)
    return [(block.tokens, block.seconds) for block in found]


async def speculated(store: Store) -> StageGroup:
    (group,) = (group for group in await store.stages.groups() if group.action == "speculate")
    return group


async def test_control_speeds_are_shared_by_every_drafter_and_k(store: Store) -> None:
    await keep(
        store,
        stage(k=5),
        stage(k=8, drafter=None, **CONTROL),
        stage(k=5, workload="code", **CONTROL),
        stage(k=5, temperature=0.0, **CONTROL),
        stage(k=5, running=2, **CONTROL),
        stage(k=5, control_backend="other", **CONTROL),
    )
    spec = await speculated(store)
    assert await speeds(store, spec, control=True) == [(40, 4.0)]
    assert await speeds(store, spec, control=False) == [(30, 1.5)]


async def test_the_control_of_a_replica_is_that_of_the_backend_that_is_named(store: Store) -> None:
    await keep(
        store,
        stage(control_backend="plain"),
        stage(backend="plain", control_backend="plain", **CONTROL),
        stage(control_backend="b", **CONTROL),
    )
    assert await speeds(store, await speculated(store), control=True) == [(40, 4.0)]


async def test_answers_of_one_block_are_added_up(store: Store) -> None:
    await keep(
        store,
        stage(first_byte_seconds=0.25, total_seconds=2.0),
        stage(first_byte_seconds=None, total_seconds=3.0),
        stage(block_at=1020.0, total_seconds=1.0),
        stage(block_at=1020.0, block_seconds=30.0, total_seconds=1.0),
    )
    *later, block = await store.stages.blocks(await speculated(store), control=False, newest=10)
    assert block == ArmBlock(
        block=Block(960.0, 60.0),
        answers=2,
        tokens=60,
        seconds=3.0,
        streamed=1,
        first_byte_seconds=0.25,
        answer_tokens=62,
        total_seconds=5.0,
    )
    assert [found.block for found in later] == [Block(1020.0, 60.0), Block(1020.0, 30.0)]


async def test_records_from_before_there_were_blocks_are_in_none(store: Store) -> None:
    await keep(store, stage(block_at=None, block_seconds=None))
    assert await speeds(store, await speculated(store), control=False) == []


async def test_only_the_newest_blocks_are_read(store: Store) -> None:
    await keep(store, *(stage(decode_tokens=n, block_at=60.0 * n) for n in (20, 30, 40)))
    group = await speculated(store)
    assert [tokens for tokens, _ in await speeds(store, group, control=False, newest=2)] == [40, 30]
    found = await store.stages.blocks(group, control=False, newest=10, since=1800.0)
    assert [block.tokens for block in found] == [40, 30]


@pytest.mark.parametrize(
    ("reason", "counts"),
    [(None, True), ("slower_than_plain", True), ("runner_lost", False), ("backend_broke_off", False)],
)
async def test_giving_up_because_it_is_slow_is_a_part_of_speculations_speed(
    store: Store, reason: str | None, counts: bool
) -> None:
    await keep(store, stage(reason=reason))
    assert bool(await speeds(store, await speculated(store), control=False)) is counts


async def test_curves_are_merged_by_adding_their_counts(store: Store) -> None:
    shadow = {"mode": "shadow", "action": "would_speculate", "executor": None}
    await keep(
        store,
        stage(**shadow, k_curve=curve()),
        stage(
            **shadow,
            k_curve=curve(
                passes=30,
                steps=20,
                draft_tokens=20,
                accepted_tokens=8,
                tokens_per_pass=1.5,
                passes_by_drafts={"0": 10, "1": 20},
            ),
        ),
        stage(**shadow, k_curve=None),
    )
    (group,) = await store.stages.groups()
    assert (await store.stages.curves())[group_key(group)] == {
        "1": {
            "passes": 50,
            "steps": 30,
            "draft_tokens": 30,
            "accepted_tokens": 12,
            "tokens_per_pass": pytest.approx((20 * 1.2 + 30 * 1.5) / 50),
            "acceptance_rate": 0.4,
            "passes_by_drafts": {"0": 20, "1": 30},
        }
    }


async def test_curves_of_further_drafters_are_merged_for_each_of_them(store: Store) -> None:
    shadow = {"mode": "shadow", "action": "would_speculate", "executor": None, "k_curve": curve()}
    await keep(
        store,
        stage(**shadow, compared={"suffix": {"curve": curve(accepted_tokens=5)}}),
        stage(
            **shadow, compared={"suffix": {"curve": curve(accepted_tokens=7)}, "ngram": {"reason": "away"}}
        ),
        stage(**shadow),
    )
    (group,) = await store.stages.groups()

    suffix = (await store.stages.curves(compared="suffix"))[group_key(group)]["1"]
    assert (suffix["draft_tokens"], suffix["accepted_tokens"], suffix["passes"]) == (20, 12, 40)
    assert suffix["passes_by_drafts"] == {"0": 20, "1": 20}
    assert (await store.stages.curves())[group_key(group)]["1"]["accepted_tokens"] == 12
    assert await store.stages.curves(compared="ngram") == {}


async def test_a_curve_without_drafts_has_no_acceptance_rate(store: Store) -> None:
    await keep(store, stage(k_curve=curve(draft_tokens=0, accepted_tokens=0, steps=0)))
    (merged,) = (await store.stages.curves()).values()
    assert merged["1"]["acceptance_rate"] is None


async def test_looping_answers_are_counted_and_enter_no_sum_no_curve_and_no_prediction(store: Store) -> None:
    shadow = {"mode": "shadow", "action": "would_speculate", "k_curve": curve()}
    loops = {"looping": True, "draft_tokens": 500, "accepted_tokens": 500, "decode_tokens": 900}
    await keep(
        store,
        stage(**shadow, looping=False, draft_tokens=10, accepted_tokens=4),
        stage(**shadow, looping=None, draft_tokens=10, accepted_tokens=5),
        stage(**shadow, **loops),
    )

    (group,) = await store.stages.groups()
    answers = await store.stages.replayed(backend="b", model="m", drafter="ngram", newest=10)

    assert (group.n, group.looping) == (3, 1)
    assert (group.draft_tokens, group.accepted_tokens, group.timed_tokens) == (20, 9, 60)
    assert (await store.stages.curves())[group_key(group)]["1"]["passes"] == 40
    assert len(answers) == 2
    assert 900 not in [tokens for tokens, _ in await speeds(store, group, control=False)]


async def test_reasons_are_counted(store: Store) -> None:
    skip = {"mode": "shadow", "action": "skip"}
    await keep(
        store, stage(**skip, reason="no_usage"), stage(**skip, reason="no_usage"), stage(**skip, reason=None)
    )
    counts = {(row.mode, row.action, row.reason): row.n for row in await store.stages.reasons()}
    assert counts == {("shadow", "skip", "no_usage"): 2, ("shadow", "skip", None): 1}


@pytest.mark.parametrize("compared", [None, "suffix"])
def test_the_curve_query_is_portable(compared: str | None) -> None:
    query = summed_curves(("model",), compared)
    assert "#>>" in str(query.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
