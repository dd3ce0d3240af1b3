"""What a report's numbers say, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.demo.report import LOOP_LEFT_OUT, Executed, Predicted, Report, Verdict, WorkloadResult


def sentences(report: Report) -> list[str]:
    """Where speculation pays, where it loses, what was not measured, what failed, and where it ran."""
    return [
        *verdict_sentences(report),
        *drafter_sentences(report),
        *absence_sentences(report),
        checks_sentence(report),
        f"Measured on: {', '.join(f'{name} {value}' for name, value in machine_facts(report).items())}.",
    ]


def verdict_sentences(report: Report) -> list[str]:
    """Whether prod pays for each workload, by every executor, and what shadow advises."""
    return [
        f"{result.workload}: {_verdict(result.in_engine)}.{_advice(result)}{_by_loop(result)}"
        for result in report.workloads.values()
    ]


def drafter_sentences(report: Report) -> list[str]:
    """Which drafter is predicted to gain most, for each workload with several to choose from."""
    return [_best_drafter(result) for result in report.workloads.values() if len(result.drafters) > 1]


def absence_sentences(report: Report) -> list[str]:
    """What was asked and not measured, counted by reason."""
    said = [said for result in report.workloads.values() for said in _absences(result)]
    if not any(result.gateway_loop for result in report.workloads.values()):
        said.append(f"gateway_loop: not measured, {LOOP_LEFT_OUT}.")
    return said


def checks_sentence(report: Report) -> str:
    """How many promises held, and the names of the others."""
    failed = [name for name, held in report.checks.items() if not held]
    held = len(report.checks) - len(failed)
    return f"{held} of {len(report.checks)} checks held." + (
        f" Not held: {', '.join(failed)}." if failed else ""
    )


def machine_facts(report: Report) -> Mapping[str, Any]:
    """The single facts of where and how it ran, without tables of measured times."""
    return {name: value for name, value in report.machine.items() if not isinstance(value, dict)}


def _verdict(executed: Executed) -> str:
    multiplier = executed.multiplier
    if multiplier.value is None:
        return f"no multiplier, {executed.reasons['multiplier']}"
    numbers = (
        f"{multiplier.value:.2f}x ({multiplier.low:.2f} to {multiplier.high:.2f}, {multiplier.n_spec} pairs)"
    )
    return {
        Verdict.PAYS: f"speculation pays, {numbers}",
        Verdict.LOSES: f"speculation loses, {numbers}: leave it off",
        Verdict.UNDECIDED: f"no clear gain, {numbers}: the interval includes 1",
        Verdict.TOO_FEW: f"{numbers}: too few pairs to say whether it pays",
    }[multiplier.verdict]


def _by_loop(result: WorkloadResult) -> str:
    return "" if result.gateway_loop is None else f" By gateway_loop: {_verdict(result.gateway_loop)}."


def _advice(result: WorkloadResult) -> str:
    predicted = result.shadow.in_engine
    if predicted.at_k is None:
        return f" Nothing is predicted: {predicted.reason}."
    if predicted.best is None:
        return " Shadow predicts no gain for any K."
    return f" Shadow predicts most from K={predicted.best_k} ({predicted.best:.2f}x)."


def _best_drafter(result: WorkloadResult) -> str:
    gains = {name: found.in_engine for name, found in result.drafters.items()}
    name = result.best_drafter
    if name is None:
        return f"{result.workload}: no drafter is predicted to gain."
    others = ", ".join(f"{other} {_gain(found)}" for other, found in gains.items() if other != name)
    answers = result.drafters[name].answers
    best = f"{_gain(gains[name])} at K={gains[name].best_k}"
    return f"{result.workload}: best drafter {name}, {best} predicted from {answers} answers ({others})."


def _gain(predicted: Predicted) -> str:
    if predicted.at_k is None:
        return "not measured"
    return "no gain" if predicted.best is None else f"{predicted.best:.2f}x"


def _absences(result: WorkloadResult) -> Iterator[str]:
    if result.not_replayed:
        yield _absence(result, result.not_replayed, "shadow", "replayed")
    for name, found in result.executed.items():
        if found.not_speculated:
            yield _absence(result, found.not_speculated, f"prod ({name})", "speculated")
    for name, drafted in result.drafters.items():
        if drafted.not_replayed:
            yield _absence(result, drafted.not_replayed, "shadow", f"replayed for {name}")


def _absence(result: WorkloadResult, reasons: Mapping[str, int], mode: str, done: str) -> str:
    counted = ", ".join(f"{reason} {times}" for reason, times in reasons.items())
    return (
        f"{result.workload}: {sum(reasons.values())} of {result.prompts} {mode} answers "
        f"were not {done} ({counted})."
    )
