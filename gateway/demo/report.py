"""From answers and stage records to the demo's numbers. Pure; design.md 9 holds the definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from gateway.demo.client import Answer
from gateway.demo.measure import Trial
from gateway.demo.records import Stage
from gateway.evidence.identity import Likeness, likeness
from gateway.evidence.multiplier import MINIMUM_SAMPLE, Speed, paired_multiplier, paired_ratio
from gateway.evidence.predict import Prediction, predicted_multiplier

CURVE_KS = tuple(range(1, 9))
MINIMUM_PAIRS = 2
"""Below it a bootstrap over pairs has nothing to resample."""

_NO_RECORD = "no record"
_GOAL = 1.8
_GOAL_WORKLOADS = ("code", "rag")
_PREDICTION_TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a run has gathered.

    Attributes:
        stages: Request id to the stage record it left; requests without one are absent.
        undecided: Request id of an answer that parts from the off answer to the target's two best
            log-probabilities at that place.
        pass_seconds: Measured seconds of a pass by its width.
        max_tokens: Longest answer that was asked for.
        k: Draft tokens per step in prod.
        exact: Whether the backend computes so precisely that no answer may differ (float32).
    """

    trials: Sequence[Trial]
    stages: Mapping[str, Stage]
    undecided: Mapping[str, Sequence[float]]
    pass_seconds: Mapping[int, float]
    max_tokens: int
    k: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """Prod speed over off speed, paired by prompt, with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None
    n_spec: int
    n_control: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTest:
    """What shadow predicts held against what prod measured, on the same prompts.

    A prediction is for the answer that shadow saw. Where bfloat16 rounding gave prod another answer it
    predicts nothing, so those prompts are left out while enough others remain.

    Attributes:
        prompts: How many prompts were compared.
        same_answers: Whether shadow and prod answered each of them alike.
    """

    predicted: float | None
    measured: float | None
    prompts: int
    same_answers: bool

    @property
    def error(self) -> float | None:
        """Predicted over measured multiplier, minus 1."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1


class Verdict(StrEnum):
    """What a multiplier's interval says."""

    PAYS = "pays"
    LOSES = "loses"
    UNDECIDED = "undecided"
    TOO_FEW = "too few"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """One workload's numbers. Those of speed and acceptance leave looping answers out.

    Attributes:
        prompts: Prompts asked. counted: those whose answers do not loop.
        off_tok_s: Decode tokens per second. prod_tok_s: the same, speculated.
        would_acceptance: Accepted over proposed drafts as replayed in shadow, over would_steps steps.
        acceptance: The same as counted by the engine in prod.
        predicted_multiplier: What shadow predicts for the K of prod.
        prediction_test: The same prediction held against the measured multiplier.
        identical_share: Prompts whose prod answer equals the off answer, ties included.
        tie_share: Prompts whose prod answer parts from it where the target is undecided.
        plain_identical_share: As identical_share, for two plain runs: what noise alone does.
        k_curve: Predicted multiplier for each K.
        not_replayed: Why shadow answers were not measured, counted; "no record" where there is none.
        not_speculated: Why prod answers were not speculated, counted likewise.
        reasons: Why a number is None.
    """

    workload: str
    prompts: int
    counted: int
    off_tok_s: float | None
    prod_tok_s: float | None
    would_acceptance: float | None
    would_steps: int | None
    acceptance: float | None
    multiplier: Multiplier
    predicted_multiplier: float | None
    prediction_test: PredictionTest
    identical_share: float
    tie_share: float
    plain_identical_share: float
    looping_share: float
    k_curve: Mapping[int, float | None]
    not_replayed: Mapping[str, int] = field(default_factory=dict)
    not_speculated: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Whether speculation pays here; undecided while the interval holds 1."""
        if self.multiplier.low is None or self.multiplier.high is None:
            return Verdict.NOT_MEASURED
        if self.multiplier.n_spec < MINIMUM_SAMPLE:
            return Verdict.TOO_FEW
        if self.multiplier.low > 1:
            return Verdict.PAYS
        return Verdict.LOSES if self.multiplier.high < 1 else Verdict.UNDECIDED

    @property
    def best_k(self) -> int | None:
        """The K with the highest predicted multiplier, if any is above 1."""
        above = {k: value for k, value in self.k_curve.items() if value is not None and value > 1}
        return max(above, key=lambda k: above[k]) if above else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a demo found."""

    machine: Mapping[str, Any]
    workloads: Mapping[str, WorkloadResult]
    checks: Mapping[str, bool]

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values; numbers that were not measured are null, never NaN."""
        return {
            "machine": dict(self.machine),
            "workloads": {name: _as_json(result) for name, result in self.workloads.items()},
            "checks": dict(self.checks),
        }


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
    replayed = _stages(evidence, (trial.shadow for trial in counted), "would_speculate")
    speculated = _stages(evidence, (trial.prod for trial in counted), "speculate")
    pairs = _pairs(evidence, counted)
    curve = {k: _predicted(replayed, k, evidence.pass_seconds) for k in CURVE_KS}
    predicted = curve.get(evidence.k) or _predicted(replayed, evidence.k, evidence.pass_seconds)
    prod = [likeness(t.off.ids, t.prod.ids, evidence.undecided.get(t.prod.request_id, ())) for t in trials]
    plain = [
        likeness(t.off.ids, t.shadow.ids, evidence.undecided.get(t.shadow.request_id, ())) for t in trials
    ]
    multiplier = _multiplier(pairs, rng)
    return WorkloadResult(
        workload=name,
        prompts=len(trials),
        counted=len(counted),
        off_tok_s=_tokens_per_second([trial.off.speed for trial in counted]),
        prod_tok_s=_tokens_per_second([spec for spec, _ in pairs]),
        would_acceptance=_acceptance(replayed),
        would_steps=sum(stage.steps for stage in replayed) if replayed else None,
        acceptance=_acceptance(speculated),
        multiplier=multiplier,
        predicted_multiplier=predicted.value,
        prediction_test=_prediction_test(evidence, counted),
        identical_share=1 - _share(prod, Likeness.DIFFERENT),
        tie_share=_share(prod, Likeness.TIE),
        plain_identical_share=1 - _share(plain, Likeness.DIFFERENT),
        looping_share=1 - len(counted) / len(trials),
        k_curve={k: prediction.value for k, prediction in curve.items()},
        not_replayed=_absences(evidence, (trial.shadow for trial in trials), "would_speculate"),
        not_speculated=_absences(evidence, (trial.prod for trial in trials), "speculate"),
        reasons=_reasons(multiplier, predicted, replayed, speculated),
    )


def _pairs(evidence: Evidence, trials: Iterable[Trial]) -> list[tuple[Speed, Speed]]:
    """Prod's speed beside off's, for each prompt that was speculated."""
    return [
        (trial.prod.speed, trial.off.speed)
        for trial in trials
        if _is(evidence.stages.get(trial.prod.request_id), "speculate")
    ]


def _prediction_test(evidence: Evidence, counted: Sequence[Trial]) -> PredictionTest:
    alike = [trial for trial in counted if trial.shadow.ids == trial.prod.ids]
    enough = len(alike) >= MINIMUM_PAIRS
    compared = alike if enough else counted
    replayed = _stages(evidence, (trial.shadow for trial in compared), "would_speculate")
    pairs = _pairs(evidence, compared)
    return PredictionTest(
        predicted=_predicted(replayed, evidence.k, evidence.pass_seconds).value,
        measured=paired_ratio(pairs) if len(pairs) >= MINIMUM_PAIRS else None,
        prompts=len(compared),
        same_answers=enough,
    )


def _is(stage: Stage | None, action: str) -> bool:
    return stage is not None and stage.action == action


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


def _tokens_per_second(speeds: Sequence[Speed]) -> float | None:
    return sum(tokens for tokens, _ in speeds) / sum(seconds for _, seconds in speeds) if speeds else None


def _acceptance(stages: Sequence[Stage]) -> float | None:
    drafted = sum(stage.draft_tokens for stage in stages)
    return sum(stage.accepted_tokens for stage in stages) / drafted if drafted else None


def _multiplier(pairs: Sequence[tuple[Speed, Speed]], rng: Random) -> Multiplier:
    sizes = {"n_spec": len(pairs), "n_control": len(pairs)}
    if len(pairs) < MINIMUM_PAIRS:
        return Multiplier(value=None, low=None, high=None, **sizes)
    interval = paired_multiplier(pairs, rng)
    return Multiplier(value=interval.value, low=interval.low, high=interval.high, **sizes)


def _predicted(replayed: Sequence[Stage], k: int, pass_seconds: Mapping[int, float]) -> Prediction:
    passes: Counter[int] = Counter()
    tokens = 0
    for stage in replayed:
        if k in stage.passes_by_drafts:
            passes.update(stage.passes_by_drafts[k])
            tokens += stage.decode_tokens
    return predicted_multiplier(tokens, passes, pass_seconds)


def _share(found: Sequence[Likeness], wanted: Likeness) -> float:
    return found.count(wanted) / len(found)


def _reasons(
    multiplier: Multiplier, predicted: Prediction, replayed: Sequence[Stage], speculated: Sequence[Stage]
) -> dict[str, str]:
    reasons = {}
    if multiplier.value is None:
        reasons["multiplier"] = (
            f"needs {MINIMUM_PAIRS} prompts with a speculated answer and no looping one, "
            f"has {multiplier.n_spec}"
        )
    if predicted.value is None:
        reasons["predicted_multiplier"] = predicted.reason or ""
    if _acceptance(replayed) is None:
        reasons["would_acceptance"] = "no answer was replayed" if not replayed else "nothing was drafted"
    if _acceptance(speculated) is None:
        reasons["acceptance"] = "no answer was speculated" if not speculated else "nothing was drafted"
    return reasons


def _checks(evidence: Evidence, results: Mapping[str, WorkloadResult]) -> dict[str, bool]:
    """Each promise as a name and whether it held; what was not measured has not held."""
    checks = {
        f"prod_ge_1_8_{name}": (results[name].multiplier.value or 0) >= _GOAL
        for name in _GOAL_WORKLOADS
        if name in results
    }
    for name, result in results.items():
        error = result.prediction_test.error
        checks[f"predicted_within_15pct_{name}"] = error is not None and abs(error) <= _PREDICTION_TOLERANCE
    checks["every_answer_has_its_record"] = not any(
        _NO_RECORD in reasons
        for result in results.values()
        for reasons in (result.not_replayed, result.not_speculated)
    )
    checks["off_leaves_no_record"] = not any(
        trial.off.request_id in evidence.stages for trial in evidence.trials
    )
    checks["replay_equals_reality"] = _replay_equals_reality(evidence)
    if evidence.exact:
        checks["identical_all"] = all(trial.off.ids == trial.prod.ids for trial in evidence.trials)
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


def _as_json(result: WorkloadResult) -> dict[str, Any]:
    multiplier = result.multiplier
    return {
        "prompts": result.prompts,
        "off_tok_s": result.off_tok_s,
        "would_acceptance": result.would_acceptance,
        "would_steps": result.would_steps,
        "acceptance": result.acceptance,
        "prod_tok_s": result.prod_tok_s,
        "multiplier": {
            "value": multiplier.value,
            "low": multiplier.low,
            "high": multiplier.high,
            "n_spec": multiplier.n_spec,
            "n_control": multiplier.n_control,
            "control_kind": "paired",
        },
        "predicted_multiplier": result.predicted_multiplier,
        "prediction_test": asdict(result.prediction_test),
        "identical_share": result.identical_share,
        "tie_share": result.tie_share,
        "plain_identical_share": result.plain_identical_share,
        "looping_share": result.looping_share,
        "k_curve": {str(k): value for k, value in result.k_curve.items()},
        "not_replayed": dict(result.not_replayed),
        "not_speculated": dict(result.not_speculated),
        "reasons": dict(result.reasons),
    }
