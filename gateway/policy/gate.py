"""The gate of `gateway_loop`: whether a request may be driven from outside, and is known to gain by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.evidence.loop_costs import (
    MOST_DRAFTS,
    Calibration,
    CostKey,
    Worth,
    WorthKey,
    costs_in_words,
    load_band,
)
from gateway.fleet.model import Backend
from gateway.policy.model import Facts, Guardrails
from gateway.policy.standing import Standing
from probes.model import Capability, Support

NOT_CALIBRATED = "not_calibrated"
"""The reason that a measurement can take away."""

DRAFT_MODEL = "draft_model"
"""The drafter that reads ids with a tokenizer of its own; the others only copy the target's."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a request is served plainly.

    Attributes:
        reason: The word that its record carries.
        why: The same as a sentence, with its numbers.
    """

    reason: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCase:
    """A request that could be driven, and what is known at this moment."""

    facts: Facts
    backend: Backend
    strategy: str
    drafter: str
    k: int
    guardrails: Guardrails
    at: float
    standing: Standing

    @property
    def cost_key(self) -> CostKey:
        """What its steps cost is kept under this key."""
        return CostKey(
            backend=self.backend.name,
            model=self.facts.model,
            strategy=self.strategy,
            drafter=self.drafter,
            band=load_band(self.standing.running),
            instance=self.backend.instance,
        )


def why_not_driven(case: LoopCase) -> Obstacle | None:
    """The first thing that speaks against driving the request; None when nothing does."""
    return next((obstacle for check in _CHECKS if (obstacle := check(case))), None)


def _one_process(case: LoopCase) -> Obstacle | None:
    """A loop's calls go to one process, which knows the prompt from the call before."""
    if case.backend.supports(Capability.SINGLE_PROCESS) is not Support.NO:
        return None
    evidence = case.backend.findings[Capability.SINGLE_PROCESS].evidence
    return Obstacle(
        "several_processes",
        f"{evidence}; register each server by its own URL: `ace backends add NAME URL URL ...`",
    )


def _sampling(case: LoopCase) -> Obstacle | None:
    """`scored` returns the target's own draws; `fanout` draws in as many calls as there are positions."""
    if case.facts.temperature == 0 or case.strategy == "scored":
        return None
    independent = case.backend.supports(Capability.INDEPENDENT_DRAWS)
    if independent is Support.YES:
        return None
    return Obstacle(
        "not_greedy_explicitly",
        f"the request does not say `temperature: 0`, and the finding {Capability.INDEPENDENT_DRAWS} "
        f"is {independent} for {case.backend.name!r}",
    )


def _runner(case: LoopCase) -> Obstacle | None:
    if case.drafter in case.standing.drafters:
        return None
    announced = ", ".join(sorted(case.standing.drafters)) or "nothing"
    return Obstacle(
        "no_runner",
        f"no live draft runner drafts with {case.drafter!r} (announced: {announced}); "
        "start one with `ace draft-runner`",
    )


def _pairing(case: LoopCase) -> Obstacle | None:
    if case.drafter != DRAFT_MODEL:
        return None
    pairing = case.standing.pairing
    if pairing is not None and pairing.agrees:
        return None
    seen = pairing.sentence if pairing else "the two tokenizers have not been compared yet"
    return Obstacle("tokenizer_mismatch", seen)


def _load(case: LoopCase) -> Obstacle | None:
    running, most = case.standing.running, case.guardrails.max_running
    if running <= most:
        return None
    return Obstacle("max_running", f"{running} requests are under way at {case.backend.name!r}, above {most}")


def _evidence(case: LoopCase) -> Obstacle | None:
    """Calibrated, able to pay, predicted to pay: in this order, since each needs the one before."""
    calibration = case.standing.costs.get(case.cost_key)
    if calibration is not None and calibration.measured_at < case.backend.process_since:
        calibration = None  # that was another server
    if calibration is None or case.at >= calibration.expires_at or case.k > MOST_DRAFTS:
        return Obstacle(NOT_CALIBRATED, _why_not_calibrated(case, calibration))
    floor = case.guardrails.min_multiplier
    if not floor:
        return None
    if (best := calibration.best(case.k)) < floor:
        why = f"even if every draft were accepted the multiplier would be {best:.2f}"
        return Obstacle("not_worth_it", f"{why}, below {floor:g} ({costs_in_words(calibration)})")
    worth = case.standing.worths.get(
        WorthKey(cost=case.cost_key, workload=str(case.facts.workload), k=case.k)
    )
    if worth is None:
        return Obstacle("no_evidence", _why_no_evidence(case))
    if worth.low < floor:
        why = f"the predicted multiplier is {_in_words(worth)}, and its lower bound has to reach {floor:g}"
        return Obstacle("not_worth_it", f"{why} ({costs_in_words(calibration)})")
    return None


_CHECKS: Sequence[Callable[[LoopCase], Obstacle | None]] = (
    _one_process,
    _sampling,
    _runner,
    _pairing,
    _load,
    _evidence,
)
"""In the order in which they are asked."""


def _why_not_calibrated(case: LoopCase, calibration: Calibration | None) -> str:
    if case.k > MOST_DRAFTS:
        return f"steps are timed for up to {MOST_DRAFTS} drafts, and `lookahead` asks for {case.k}"
    key = case.cost_key
    state = "has not been measured" if calibration is None else "was measured too long ago"
    return (
        f"what a step of {key.strategy} with {key.drafter} costs on {key.backend!r} at load {key.band} "
        f"{state}; `ace backends calibrate {key.backend}` measures it now"
    )


def _why_no_evidence(case: LoopCase) -> str:
    return (
        f"no shadow answers of {case.facts.model!r} on {case.backend.name!r} say how {case.drafter} does on "
        f"{case.facts.workload} with K = {case.k}; a rule in mode shadow collects them"
    )


def _in_words(worth: Worth) -> str:
    return f"{worth.value:.2f} (at least {worth.low:.2f}, from {worth.answers} shadow answers)"
