"""Made-up answers and stage records of a demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.demo.client import Answer
from gateway.demo.measure import Trial
from gateway.demo.prompts import Prompt
from gateway.demo.records import Stage
from gateway.demo.report import Evidence

IDS = tuple(range(100, 141))
LOOP = (7, 8) * 40
PASS_SECONDS = {width: 0.020 + 0.0002 * width for width in range(1, 10)}


def answer(request_id: str, *, ids: Sequence[int] = IDS, seconds: float = 2.0) -> Answer:
    return Answer(
        request_id=request_id,
        prompt_ids=(1, 2, 3),
        ids=tuple(ids),
        decode_tokens=len(ids) - 1,
        decode_seconds=seconds,
    )


def trial(
    workload: str = "code",
    name: str = "one",
    *,
    off: Sequence[int] = IDS,
    shadow: Sequence[int] = IDS,
    prod: Sequence[int] = IDS,
    off_seconds: float = 2.0,
    prod_seconds: float = 1.0,
) -> Trial:
    return Trial(
        prompt=Prompt(workload, name, "a question"),
        off=answer(f"off-{workload}-{name}", ids=off, seconds=off_seconds),
        shadow=answer(f"shadow-{workload}-{name}", ids=shadow, seconds=off_seconds),
        prod=answer(f"prod-{workload}-{name}", ids=prod, seconds=prod_seconds),
    )


def stage(action: str, **changes: Any) -> Stage:
    fields: dict[str, Any] = {
        "action": action,
        "reason": None,
        "steps": 4,
        "draft_tokens": 20,
        "accepted_tokens": 16,
        "decode_tokens": 40,
        "passes_by_drafts": {},
    }
    return Stage(**(fields | changes))


def replayed(**changes: Any) -> Stage:
    """Twenty passes for forty tokens, whatever K."""
    curve = {k: {0: 16, k: 4} for k in range(1, 9)}
    return stage("would_speculate", **({"passes_by_drafts": curve} | changes))


def stages_of(trials: Sequence[Trial]) -> dict[str, Stage]:
    found = {one.shadow.request_id: replayed() for one in trials}
    return found | {one.prod.request_id: stage("speculate") for one in trials}


def evidence(
    trials: Sequence[Trial],
    *,
    stages: Mapping[str, Stage] | None = None,
    undecided: Mapping[str, Sequence[float]] | None = None,
    pass_seconds: Mapping[int, float] | None = None,
    exact: bool = False,
) -> Evidence:
    return Evidence(
        trials=trials,
        stages=stages_of(trials) if stages is None else stages,
        undecided=undecided or {},
        pass_seconds=PASS_SECONDS if pass_seconds is None else pass_seconds,
        max_tokens=64,
        k=5,
        exact=exact,
    )
