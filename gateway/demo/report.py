"""What a demo found, as values and as JSON; design.md 9 holds the definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from gateway.evidence.multiplier import MINIMUM_SAMPLE

LOOP_LEFT_OUT = "a quick demo leaves it out"


class Verdict(StrEnum):
    """What a multiplier's interval says."""

    PAYS = "pays"
    LOSES = "loses"
    UNDECIDED = "undecided"
    TOO_FEW = "too few"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Decode tokens per second over some answers, with its 95 % interval; None where there is no answer."""

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """Speculated speed over plain speed, paired by prompt, with its 95 % interval.

    Attributes:
        n_spec: Speculated answers.
        n_control: Plain answers: off's and shadow's to the same prompts.
    """

    value: float | None
    low: float | None
    high: float | None
    n_spec: int
    n_control: int

    @property
    def verdict(self) -> Verdict:
        """Whether speculation pays; undecided while the interval holds 1."""
        if self.low is None or self.high is None:
            return Verdict.NOT_MEASURED
        if self.n_spec < MINIMUM_SAMPLE:
            return Verdict.TOO_FEW
        if self.low > 1:
            return Verdict.PAYS
        return Verdict.LOSES if self.high < 1 else Verdict.UNDECIDED


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What one executor made of prod.

    Attributes:
        acceptance: Accepted over proposed drafts.
        by_position: i-th entry = steps that accepted at least i+1 drafts, over all steps.
        identical_share: Prompts whose answer equals the off answer, ties included.
        tie_share: Prompts whose answer parts from it where the target is undecided.
        not_speculated: Why answers were not speculated, counted; "no record" where there is none.
        reasons: Why a number is None.
    """

    tok_s: Rate
    multiplier: Multiplier
    acceptance: float | None
    by_position: tuple[float, ...]
    identical_share: float
    tie_share: float
    not_speculated: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What one executor would make of one drafter's drafts, the time of drafting included.

    Attributes:
        at_k: Multiplier for the K of prod.
        by_k: The same for each K.
        reason: Why `at_k` is None.
    """

    at_k: float | None
    by_k: Mapping[int, float | None]
    reason: str | None = None

    @property
    def best_k(self) -> int | None:
        """The K with the highest multiplier, if any is above 1."""
        above = {k: value for k, value in self.by_k.items() if value is not None and value > 1}
        return max(above, key=lambda k: above[k]) if above else None

    @property
    def best(self) -> float | None:
        """The multiplier at the best K."""
        return None if self.best_k is None else self.by_k[self.best_k]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What one drafter would have done with the answers that shadow saw.

    Attributes:
        answers: How many were replayed for it.
        acceptance: Accepted over proposed drafts, over `steps` steps, for the K of prod.
        predicted: By executor; in_engine and gateway_loop.
        not_replayed: Why answers were not replayed for it, counted.
    """

    answers: int
    acceptance: float | None
    steps: int | None
    predicted: Mapping[str, Predicted]
    not_replayed: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_engine(self) -> Predicted:
        """What the engine itself would make of it."""
        return self.predicted["in_engine"]

    @property
    def gateway_loop(self) -> Predicted:
        """What the gateway's loop would make of it, with the drafter in the draft runner."""
        return self.predicted["gateway_loop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """One workload's numbers. Those of speed and acceptance leave looping answers out.

    Attributes:
        prompts: Prompts asked. counted: those whose answers do not loop.
        executed: What prod gave, by executor: in_engine, and gateway_loop unless the demo left it out.
        shadow: What the policy's drafter would have done. would_by_position: as in Executed.
        drafters: The same for every drafter that was replayed, the policy's among them.
        prediction_test: Shadow's prediction held against the measured multiplier.
        measured_curve: Multiplier of in_engine by K, for each K that some prompts were asked with.
        plain_identical_share: As Executed.identical_share, for two plain runs: what noise alone does.
        not_replayed: Why shadow answers were not measured, counted; "no record" where there is none.
    """

    workload: str
    prompts: int
    counted: int
    off: Rate
    executed: Mapping[str, Executed]
    shadow: Drafted
    would_by_position: tuple[float, ...]
    drafters: Mapping[str, Drafted]
    prediction_test: PredictionTest
    measured_curve: Mapping[int, Multiplier]
    plain_identical_share: float
    looping_share: float
    not_replayed: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_engine(self) -> Executed:
        """Prod as the engine itself carries it out."""
        return self.executed["in_engine"]

    @property
    def gateway_loop(self) -> Executed | None:
        """Prod as the gateway's own loop carries it out; None where it was not asked to."""
        return self.executed.get("gateway_loop")

    @property
    def best_drafter(self) -> str | None:
        """The drafter whose best K is predicted to gain most inside the engine, if any gains."""
        bests = {name: found.in_engine.best for name, found in self.drafters.items()}
        gains = {name: best for name, best in bests.items() if best is not None}
        return max(gains, key=lambda name: gains[name]) if gains else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a demo found.

    Attributes:
        machine: Where, when and how it ran; its `k` is the K of prod.
        checks: Each promise as a name and whether it held.
    """

    machine: Mapping[str, Any]
    workloads: Mapping[str, WorkloadResult]
    checks: Mapping[str, bool]

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values; numbers that were not measured are null, never NaN."""
        return {
            "machine": dict(self.machine),
            "workloads": {name: _workload(result) for name, result in self.workloads.items()},
            "checks": dict(self.checks),
        }


def _workload(result: WorkloadResult) -> dict[str, Any]:
    in_engine, shadow = result.in_engine, result.shadow
    return {
        "prompts": result.prompts,
        "off_tok_s": result.off.value,
        "off_tok_s_interval": _interval(result.off),
        "would_acceptance": shadow.acceptance,
        "would_acceptance_by_position": list(result.would_by_position),
        "would_steps": shadow.steps,
        "acceptance": in_engine.acceptance,
        "acceptance_by_position": list(in_engine.by_position),
        "prod_tok_s": in_engine.tok_s.value,
        "prod_tok_s_interval": _interval(in_engine.tok_s),
        "multiplier": _multiplier(in_engine.multiplier),
        "predicted_multiplier": shadow.in_engine.at_k,
        "prediction_test": asdict(result.prediction_test),
        "identical_share": in_engine.identical_share,
        "tie_share": in_engine.tie_share,
        "plain_identical_share": result.plain_identical_share,
        "looping_share": result.looping_share,
        "k_curve": _by_k(shadow.in_engine.by_k),
        "measured_k_curve": _by_k({k: _multiplier(found) for k, found in result.measured_curve.items()}),
        "drafters": {name: _drafted(found) for name, found in result.drafters.items()},
        "best_drafter": result.best_drafter,
        "not_replayed": dict(result.not_replayed),
        "not_speculated": dict(in_engine.not_speculated),
        "reasons": _reasons(result),
        "gateway_loop": None if result.gateway_loop is None else _executed(result.gateway_loop),
    }


def _reasons(result: WorkloadResult) -> dict[str, str]:
    reasons = dict(result.in_engine.reasons)
    if result.gateway_loop is None:
        reasons["gateway_loop"] = LOOP_LEFT_OUT
    if (reason := result.shadow.in_engine.reason) is not None:
        reasons["predicted_multiplier"] = reason
    if result.shadow.acceptance is None:
        reasons["would_acceptance"] = (
            "nothing was drafted" if result.shadow.steps else "no answer was replayed"
        )
    return reasons


def _executed(found: Executed) -> dict[str, Any]:
    return {
        "tok_s": found.tok_s.value,
        "tok_s_interval": _interval(found.tok_s),
        "multiplier": _multiplier(found.multiplier),
        "acceptance": found.acceptance,
        "acceptance_by_position": list(found.by_position),
        "identical_share": found.identical_share,
        "tie_share": found.tie_share,
        "not_speculated": dict(found.not_speculated),
        "reasons": dict(found.reasons),
    }


def _multiplier(multiplier: Multiplier) -> dict[str, Any]:
    return asdict(multiplier) | {"control_kind": "paired"}


def _drafted(found: Drafted) -> dict[str, Any]:
    return {
        "answers": found.answers,
        "acceptance": found.acceptance,
        **_predicted(found.in_engine),
        "gateway_loop": _predicted(found.gateway_loop),
        "not_replayed": dict(found.not_replayed),
    }


def _predicted(found: Predicted) -> dict[str, Any]:
    return {
        "predicted_multiplier": found.at_k,
        "best_k": found.best_k,
        "k_curve": _by_k(found.by_k),
        "reason": found.reason,
    }


def _interval(rate: Rate) -> list[float] | None:
    return None if rate.low is None or rate.high is None else [rate.low, rate.high]


def _by_k(curve: Mapping[int, Any]) -> dict[str, Any]:
    return {str(k): value for k, value in curve.items()}
