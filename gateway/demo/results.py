"""From answers and stage records to the demo's numbers. Pure; design.md 9 holds the definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from random import Random
from typing import Any

from gateway.demo.calibrate import Costs
from gateway.demo.client import Answer
from gateway.demo.measure import EXECUTORS, OTHER_KS, Trial, Way
from gateway.demo.records import Replay, Stage
from gateway.demo.report import (
    Drafted,
    Executed,
    Multiplier,
    Predicted,
    PredictionTest,
    Rate,
    Report,
    WorkloadResult,
)
from gateway.evidence.identity import Likeness, likeness
from gateway.evidence.multiplier import Speed, bootstrap_rate, paired_multiplier, paired_ratio
from gateway.evidence.predict import Prediction, predicted_multiplier

CURVE_KS = tuple(range(1, 9))
PLAIN_ANSWERS = 2
"""To each prompt: the off and the shadow answer, which are decoded alike."""

MINIMUM_PAIRS = 2
"""Below it a bootstrap over pairs has nothing to resample."""

_NO_RECORD = "no record"
_GOAL = 1.8
_GOAL_WORKLOADS = ("code", "rag")
_PREDICTION_TOLERANCE = 0.15


_NOT_MEASURED = Costs(plain_seconds=None, pass_seconds={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a run has gathered.

    Attributes:
        stages: Request id to the stage record it left; requests without one are absent.
        undecided: Request id of an answer that parts from the off answer to the target's two best
            log-probabilities at that place.
        costs: What passes take, by executor and drafter; those that were not measured are absent.
        max_tokens: Longest answer that was asked for.
        drafter: What prod drafts with.
        k: Draft tokens per step in prod.
        exact: Whether the backend computes so precisely that no answer may differ (float32).
    """

    trials: Sequence[Trial]
    stages: Mapping[str, Stage]
    undecided: Mapping[str, Sequence[float]]
    costs: Mapping[str, Mapping[str, Costs]]
    max_tokens: int
    drafter: str
    k: int
    exact: bool


def make_report(evidence: Evidence, machine: Mapping[str, Any], rng: Random) -> Report:
    """Work out every number.

    Args:
        evidence: What the run gathered; at least one trial.
        machine: Where it ran, copied into the report.
        rng: Source of the bootstrap, so that a report can be repeated.
    """
    names = dict.fromkeys(trial.prompt.workload for trial in evidence.trials)
    results = {name: _workload(name, evidence, rng) for name in names}
    return Report(machine=machine, workloads=results, checks=_checks(evidence, results))


def _workload(name: str, evidence: Evidence, rng: Random) -> WorkloadResult:
    trials = [trial for trial in evidence.trials if trial.prompt.workload == name]
    counted = [trial for trial in trials if not trial.looping]
    replayed = _replayed(evidence, counted)
    named = (chain(stage.replays, stage.not_replayed) for stage in replayed)
    names = dict.fromkeys(chain([evidence.drafter], *named))
    drafters = {drafter: _drafted(drafter, replayed, evidence) for drafter in names}
    executed = {
        name: _executed(way, trials, evidence, rng)
        for name, way in EXECUTORS.items()
        if all(way in trial.answers for trial in trials)
    }
    plain = [_likeness(evidence, trial, Way.SHADOW) for trial in trials]
    return WorkloadResult(
        workload=name,
        prompts=len(trials),
        counted=len(counted),
        off=_rate([trial.off.speed for trial in counted], rng),
        executed=executed,
        shadow=drafters[evidence.drafter],
        would_by_position=_by_position(replayed),
        drafters=drafters,
        prediction_test=_prediction_test(evidence, counted),
        measured_curve=_measured_curve(executed["in_engine"], counted, evidence, rng),
        plain_identical_share=1 - _share(plain, Likeness.DIFFERENT),
        looping_share=1 - len(counted) / len(trials),
        not_replayed=_absences(evidence, (trial.shadow for trial in trials), "would_speculate"),
    )


def _executed(way: Way, trials: Sequence[Trial], evidence: Evidence, rng: Random) -> Executed:
    counted = [trial for trial in trials if not trial.looping]
    speculated = _stages(evidence, (trial.answers[way] for trial in counted), "speculate")
    pairs = _pairs(evidence, counted, way)
    likenesses = [_likeness(evidence, trial, way) for trial in trials]
    multiplier = _multiplier(pairs, rng)
    reasons = {}
    if multiplier.value is None:
        reasons["multiplier"] = (
            f"needs {MINIMUM_PAIRS} prompts with a speculated answer and no looping one, "
            f"has {multiplier.n_spec}"
        )
    acceptance = _acceptance(speculated)
    if acceptance is None:
        reasons["acceptance"] = "nothing was drafted" if speculated else "no answer was speculated"
    return Executed(
        tok_s=_rate([spec for spec, _ in pairs], rng),
        multiplier=multiplier,
        acceptance=acceptance,
        by_position=_by_position(speculated),
        identical_share=1 - _share(likenesses, Likeness.DIFFERENT),
        tie_share=_share(likenesses, Likeness.TIE),
        not_speculated=_absences(evidence, (trial.answers[way] for trial in trials), "speculate"),
        reasons=reasons,
    )


def _drafted(drafter: str, stages: Sequence[Stage], evidence: Evidence) -> Drafted:
    """What `drafter` would have done with the answers of these shadow records."""
    replays = [stage.replays[drafter] for stage in stages if drafter in stage.replays]
    return Drafted(
        answers=len(replays),
        acceptance=_acceptance(replays),
        steps=sum(replay.steps for replay in replays) if replays else None,
        predicted={name: _predicted(drafter, stages, name, evidence) for name in EXECUTORS},
        not_replayed=Counter(
            stage.not_replayed[drafter] for stage in stages if drafter in stage.not_replayed
        ),
    )


def _predicted(drafter: str, stages: Sequence[Stage], executor: str, evidence: Evidence) -> Predicted:
    costs = evidence.costs.get(executor, {}).get(drafter, _NOT_MEASURED)
    curve = {k: _prediction(drafter, stages, k, costs) for k in sorted({*CURVE_KS, evidence.k})}
    return Predicted(
        at_k=curve[evidence.k].value,
        by_k={k: curve[k].value for k in CURVE_KS},
        reason=curve[evidence.k].reason,
    )


def _prediction(drafter: str, stages: Iterable[Stage], k: int, costs: Costs) -> Prediction:
    passes: Counter[int] = Counter()
    tokens = 0
    for stage in stages:
        if drafter in stage.replays:
            passes.update(stage.replays[drafter].passes_by_drafts.get(k, {}))
            tokens += stage.decode_tokens
    return predicted_multiplier(tokens, passes, costs.pass_seconds, costs.plain_seconds)


def _measured_curve(
    in_engine: Executed, counted: Sequence[Trial], evidence: Evidence, rng: Random
) -> dict[int, Multiplier]:
    """The multiplier by K: the policy's over all prompts, every other over those asked with it."""
    curve = {evidence.k: in_engine.multiplier}
    for way, k in OTHER_KS.items():
        asked = [trial for trial in counted if way in trial.answers]
        curve[k] = _multiplier(_pairs(evidence, asked, way), rng)
    return dict(sorted(curve.items()))


def _prediction_test(evidence: Evidence, counted: Sequence[Trial]) -> PredictionTest:
    alike = [trial for trial in counted if trial.shadow.ids == trial.prod.ids]
    enough = len(alike) >= MINIMUM_PAIRS
    compared = alike if enough else counted
    pairs = _pairs(evidence, compared, Way.PROD)
    return PredictionTest(
        predicted=_predicted(evidence.drafter, _replayed(evidence, compared), "in_engine", evidence).at_k,
        measured=paired_ratio(pairs) if len(pairs) >= MINIMUM_PAIRS else None,
        prompts=len(compared),
        same_answers=enough,
    )


def _pairs(evidence: Evidence, trials: Iterable[Trial], way: Way) -> list[tuple[Speed, Speed]]:
    """The speculated speed beside the plain one, for each prompt speculated in a measurable time."""
    pairs = []
    for trial in trials:
        stage = evidence.stages.get(trial.answers[way].request_id)
        if stage is not None and stage.action == "speculate":
            tokens, seconds = _speed(trial.answers[way], stage)
            if seconds > 0:
                pairs.append(((tokens, seconds), trial.plain_speed))
    return pairs


def _speed(answer: Answer, stage: Stage) -> Speed:
    """By the engine's clock; where many calls made one answer, by the gateway's."""
    return answer.speed if answer.decode_seconds else (stage.decode_tokens, stage.decode_seconds)


def _is(stage: Stage | None, action: str) -> bool:
    return stage is not None and stage.action == action


def _replayed(evidence: Evidence, trials: Iterable[Trial]) -> list[Stage]:
    return _stages(evidence, (trial.shadow for trial in trials), "would_speculate")


def _stages(evidence: Evidence, answers: Iterable[Answer], action: str) -> list[Stage]:
    found = (evidence.stages.get(answer.request_id) for answer in answers)
    return [stage for stage in found if stage is not None and stage.action == action]


def _absences(evidence: Evidence, answers: Iterable[Answer], action: str) -> dict[str, int]:
    """Why answers have no record of this action, counted."""
    reasons: Counter[str] = Counter()
    for answer in answers:
        stage = evidence.stages.get(answer.request_id)
        if stage is None:
            reasons[_NO_RECORD] += 1
        elif stage.action != action:
            reasons[stage.reason or stage.action] += 1
    return dict(reasons)


def _rate(speeds: Sequence[Speed], rng: Random) -> Rate:
    if not speeds:
        return Rate(value=None, low=None, high=None, n=0)
    interval = bootstrap_rate(speeds, rng)
    return Rate(value=interval.value, low=interval.low, high=interval.high, n=len(speeds))


def _multiplier(pairs: Sequence[tuple[Speed, Speed]], rng: Random) -> Multiplier:
    sizes = {"n_spec": len(pairs), "n_control": PLAIN_ANSWERS * len(pairs)}
    if len(pairs) < MINIMUM_PAIRS:
        return Multiplier(value=None, low=None, high=None, **sizes)
    interval = paired_multiplier(pairs, rng)
    return Multiplier(value=interval.value, low=interval.low, high=interval.high, **sizes)


def _acceptance(counted: Sequence[Stage] | Sequence[Replay]) -> float | None:
    drafted = sum(one.draft_tokens for one in counted)
    return sum(one.accepted_tokens for one in counted) / drafted if drafted else None


def _by_position(stages: Sequence[Stage]) -> tuple[float, ...]:
    steps = sum(stage.steps for stage in stages)
    sums = (sum(column) for column in zip_longest(*(s.accepted_by_position for s in stages), fillvalue=0))
    return tuple(accepted / steps for accepted in sums) if steps else ()


def _likeness(evidence: Evidence, trial: Trial, way: Way) -> Likeness:
    answer = trial.answers[way]
    return likeness(trial.off.ids, answer.ids, evidence.undecided.get(answer.request_id, ()))


def _share(found: Sequence[Likeness], wanted: Likeness) -> float:
    return found.count(wanted) / len(found)


def _checks(evidence: Evidence, results: Mapping[str, WorkloadResult]) -> dict[str, bool]:
    """Each promise as a name and whether it held; what was not measured has not held."""
    checks = {
        f"prod_ge_1_8_{name}": (results[name].in_engine.multiplier.value or 0) >= _GOAL
        for name in _GOAL_WORKLOADS
        if name in results
    }
    for name, result in results.items():
        error = result.prediction_test.error
        checks[f"predicted_within_15pct_{name}"] = error is not None and abs(error) <= _PREDICTION_TOLERANCE
    checks["every_answer_has_its_record"] = not any(
        _NO_RECORD in reasons
        for result in results.values()
        for reasons in (
            result.not_replayed,
            *(executed.not_speculated for executed in result.executed.values()),
        )
    )
    checks["off_leaves_no_record"] = not any(
        trial.off.request_id in evidence.stages for trial in evidence.trials
    )
    checks["replay_equals_reality"] = _replay_equals_reality(evidence)
    if evidence.exact:
        checks["identical_all"] = all(
            trial.off.ids == answer.ids for trial in evidence.trials for answer in trial.answers.values()
        )
    return checks


def _replay_equals_reality(evidence: Evidence) -> bool:
    """Where shadow and prod gave the same answer: would-be counts equal the engine's counts."""
    compared = [
        (evidence.stages[trial.shadow.request_id], evidence.stages[trial.prod.request_id])
        for trial in evidence.trials
        if trial.shadow.ids == trial.prod.ids
        and _is(evidence.stages.get(trial.shadow.request_id), "would_speculate")
        and _is(evidence.stages.get(trial.prod.request_id), "speculate")
    ]
    return bool(compared) and all(would_be.counts == real.counts for would_be, real in compared)
