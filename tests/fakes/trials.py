"""Made-up answers and stage records of a demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.demo.calibrate import Costs
from gateway.demo.client import Answer
from gateway.demo.measure import SHORTEST, Trial, Way
from gateway.demo.prompts import Prompt
from gateway.demo.records import Replay, Stage
from gateway.demo.results import Evidence
from gateway.policy.model import DRAFTERS

IDS = tuple(range(100, 141))
LOOP = (7, 8) * 40
PASS_SECONDS = {width: 0.020 + 0.0002 * width for width in range(1, 10)}


def answer(request_id: str, *, ids: Sequence[int] = IDS, seconds: float = 2.0) -> Answer:
    return Answer(
        request_id=request_id,
        prompt_ids=(1, 2, 3),
        ids=tuple(ids),
        text=" ".join(map(str, ids)),
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
    loop: Sequence[int] = IDS,
    other_seconds: Mapping[Way, float] | None = None,
) -> Trial:
    """A prompt's answers: the loop's is timed by its record, those of `other_seconds` are as off's."""
    answers = {
        Way.OFF: answer(f"off-{workload}-{name}", ids=off, seconds=off_seconds),
        Way.SHADOW: answer(f"shadow-{workload}-{name}", ids=shadow, seconds=off_seconds),
        Way.PROD: answer(f"prod-{workload}-{name}", ids=prod, seconds=prod_seconds),
        Way.LOOP: answer(f"loop-{workload}-{name}", ids=loop, seconds=0),
    }
    for way, seconds in (other_seconds or {}).items():
        answers[way] = answer(f"{way}-{workload}-{name}", ids=off, seconds=seconds)
    return Trial(prompt=Prompt(workload, name, "a question"), answers=answers)


def without_loop(one: Trial) -> Trial:
    """The same trial as a quick demo would have made it."""
    return replace(one, answers={way: one.answers[way] for way in SHORTEST})


def stage(action: str, **changes: Any) -> Stage:
    fields: dict[str, Any] = {
        "action": action,
        "reason": None,
        "steps": 4,
        "draft_tokens": 20,
        "accepted_tokens": 16,
        "accepted_by_position": (4, 4, 3, 3, 2),
        "decode_tokens": 40,
        "decode_seconds": 1.25,
        "replays": {},
        "not_replayed": {},
    }
    return Stage(**(fields | changes))


def replay(**changes: Any) -> Replay:
    """Twenty passes for forty tokens, whatever K."""
    fields: dict[str, Any] = {
        "steps": 4,
        "draft_tokens": 20,
        "accepted_tokens": 16,
        "passes_by_drafts": {k: {0: 16, k: 4} for k in range(1, 9)},
    }
    return Replay(**(fields | changes))


def replayed(
    *,
    compared: Mapping[str, Replay] | None = None,
    not_replayed: Mapping[str, str] | None = None,
    **changes: Any,
) -> Stage:
    """A shadow record of the n-gram drafter, beside what others would have done."""
    ngram = replay(**changes)
    return stage(
        "would_speculate",
        steps=ngram.steps,
        draft_tokens=ngram.draft_tokens,
        accepted_tokens=ngram.accepted_tokens,
        replays={"ngram": ngram, **(compared or {})},
        not_replayed=not_replayed or {},
    )


def stages_of(trials: Sequence[Trial]) -> dict[str, Stage]:
    """Every request that leaves a record has one: shadow was replayed, all others were speculated."""
    return {
        answer.request_id: replayed() if way is Way.SHADOW else stage("speculate")
        for one in trials
        for way, answer in one.answers.items()
        if way is not Way.OFF
    }


def evidence(
    trials: Sequence[Trial],
    *,
    stages: Mapping[str, Stage] | None = None,
    undecided: Mapping[str, Sequence[float]] | None = None,
    pass_seconds: Mapping[int, float] | None = None,
    loop_costs: Mapping[str, Costs] | None = None,
    exact: bool = False,
) -> Evidence:
    """`pass_seconds` are those of every drafter inside the engine."""
    times = PASS_SECONDS if pass_seconds is None else pass_seconds
    in_engine = Costs(plain_seconds=times.get(1), pass_seconds=times)
    return Evidence(
        trials=trials,
        stages=stages_of(trials) if stages is None else stages,
        undecided=undecided or {},
        costs={"in_engine": dict.fromkeys(DRAFTERS, in_engine), "gateway_loop": loop_costs or {}},
        max_tokens=64,
        drafter="ngram",
        k=5,
        exact=exact,
    )
