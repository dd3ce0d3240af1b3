"""What shadow answers predict of the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StoreError
from gateway.evidence.loop_costs import CostKey, WorthKey
from gateway.evidence.worths import NEWEST_ANSWERS, Worths, asked_ks, worths_of
from gateway.policy.load import LoadedPolicy
from gateway.policy.model import Policy
from gateway.policy.overlays import NO_OVERLAYS, Overlay, OverlayKind, Overlays, Scope
from gateway.store.model import ReplayedAnswer
from gateway.store.stages import row_of
from gateway.store.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.records import stage
from tests.fakes.standings import costs
from tests.fakes.stores import opened_store

KEY = CostKey(backend="b", model="m", strategy="scored", drafter="ngram", band="1")
COSTS = costs(KEY, 1_000_000.0, plain=0.070, step=0.070)
"""A step costs what a plain token does, so what is predicted is the tokens per pass."""


def curve(tokens: int, passes: int, drafts: int = 5) -> dict[str, dict[str, Any]]:
    """The curve of an answer whose every pass had so many drafts."""
    return {
        "5": {
            "passes": passes,
            "steps": passes,
            "draft_tokens": drafts * passes,
            "accepted_tokens": tokens - passes,
            "tokens_per_pass": tokens / passes,
            "acceptance_rate": None,
            "passes_by_drafts": {str(drafts): passes},
        }
    }


def answers(count: int, workload: str = "code", tokens: int = 60) -> list[ReplayedAnswer]:
    return [ReplayedAnswer(workload=workload, k_curve=curve(tokens, 20)) for _ in range(count)]


def policy(*ks: int, mode: str = "prod") -> Policy:
    rules = [{"name": f"k{k}", "mode": mode, "experimental": True, "lookahead": k} for k in ks]
    return Policy.model_validate({"version": 1, "rules": rules})


def test_a_workload_with_enough_answers_has_a_worth() -> None:
    (key,), (worth,) = zip(
        *worths_of(COSTS, [*answers(5), *answers(4, workload="chat")], [5]).items(), strict=True
    )
    assert key == WorthKey(cost=KEY, workload="code", k=5)
    assert (worth.value, worth.low) == pytest.approx((3.0, 3.0))
    assert worth.answers == 5


def test_answers_without_a_pass_or_without_that_k_count_for_nothing() -> None:
    empty = {"5": {**curve(60, 20)["5"], "passes": 0, "tokens_per_pass": None, "passes_by_drafts": {}}}
    found = [ReplayedAnswer(workload="code", k_curve=empty)] * 5
    assert worths_of(COSTS, found, [5]) == {}
    assert worths_of(COSTS, answers(5), [3]) == {}


def test_only_the_newest_answers_count() -> None:
    older = answers(NEWEST_ANSWERS, tokens=20)
    (worth,) = worths_of(COSTS, [*answers(NEWEST_ANSWERS), *older], [5]).values()
    assert worth.value == pytest.approx(3.0)
    assert worth.answers == NEWEST_ANSWERS


def test_answers_that_differ_widen_the_interval() -> None:
    (worth,) = worths_of(COSTS, [*answers(10), *answers(10, tokens=20)], [5]).values()
    assert worth.low < worth.value == pytest.approx(2.0)


def test_only_the_k_of_prod_rules_that_can_be_predicted_for_are_asked_about() -> None:
    assert asked_ks(policy(5, 3, 5, 9), NO_OVERLAYS) == (3, 5)
    assert asked_ks(policy(5, mode="shadow"), NO_OVERLAYS) == ()


def test_a_k_that_an_overlay_asks_for_is_predicted_too() -> None:
    shorter = Overlay(
        id="o",
        kind=OverlayKind.LOOKAHEAD,
        scope=Scope(rule="*"),
        value=2,
        author="a",
        reason="b",
        created_at=0,
    )
    assert asked_ks(policy(5, 3), Overlays((shorter,))) == (2, 3, 5)


class Holder:
    def __init__(self, held: Policy) -> None:
        self.current = LoadedPolicy(policy=held, revision="1", source="test", loaded_at=0.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(tmp_path) as opened:
        yield opened


async def keep(store: Store, **changes: Any) -> None:
    said = {"mode": "shadow", "action": "would_speculate", "workload": "code", "k_curve": curve(60, 20)}
    await store.stages.add([row_of(stage(**(said | changes))) for _ in range(5)])


def worths(store: Store, clock: FakeClock) -> Worths:
    return Worths(
        stages=store.stages,
        policy=Holder(policy(5)),
        overlays=lambda: NO_OVERLAYS,
        costs=lambda: {KEY: COSTS},
        clock=clock,
    )


async def test_worths_follow_the_stored_answers(store: Store) -> None:
    kept = worths(store, FakeClock())
    await kept.refresh_once()
    assert kept.known() == {}
    await keep(store)
    await kept.refresh_once()
    assert [worth.answers for worth in kept.known().values()] == [5]
    await keep(store)
    await kept.refresh_once()
    assert [worth.answers for worth in kept.known().values()] == [10]


async def test_nothing_new_means_no_work(store: Store) -> None:
    kept = worths(store, FakeClock())
    await keep(store)
    await kept.refresh_once()
    before = kept.known()
    await kept.refresh_once()
    assert kept.known() is before


@pytest.mark.parametrize(
    "changes", [{"backend": "other"}, {"model": "other"}, {"drafter": "suffix"}, {"k_curve": None}]
)
async def test_other_backends_models_and_drafters_say_nothing(store: Store, changes: dict[str, Any]) -> None:
    kept = worths(store, FakeClock())
    await keep(store, **changes)
    await kept.refresh_once()
    assert kept.known() == {}


async def test_an_expired_calibration_predicts_nothing(store: Store) -> None:
    clock = FakeClock()
    kept = worths(store, clock)
    await keep(store)
    clock.advance(3600)
    await kept.refresh_once()
    assert kept.known() == {}


async def test_while_the_store_is_down_the_last_predictions_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = worths(store, FakeClock())
    await keep(store)
    await kept.refresh_once()

    async def down() -> int:
        raise StoreError("sqlite", "the disk is full")

    monkeypatch.setattr(store.stages, "newest", down)
    await kept.refresh_once()
    assert len(kept.known()) == 1
