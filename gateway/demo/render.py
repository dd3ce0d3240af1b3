"""The demo's findings, tables and sentences on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.demo.report import Report, Verdict, WorkloadResult

_ABSENT = "-"
_SUPPORT_STYLE = {"yes": "green", "no": "red", "unknown": "yellow"}


def show_backend(console: Console, backend: Mapping[str, Any]) -> None:
    """Print what the probes found, and one sentence for each executor."""
    table = _table(f"What the probes found at {backend['name']} ({backend['kind']})")
    for column in ("capability", "support", "value", "evidence"):
        table.add_column(column)
    for finding in backend["findings"]:
        table.add_row(
            finding["capability"],
            Text(finding["support"], style=_SUPPORT_STYLE[finding["support"]]),
            Text(_value(finding["value"])),
            Text(finding["evidence"]),
        )
    console.print(table)
    for executor in backend["executors"]:
        console.print(Text(executor["sentence"]))
    console.print()


def show_report(console: Console, report: Report) -> None:
    """Print every number, then what they mean in sentences."""
    for table in (_speed_table(report), _curve_table(report)):
        console.print(table)
        console.print()
    for sentence in sentences(report):
        console.print(Text(sentence))


def sentences(report: Report) -> list[str]:
    """What the numbers say: where speculation pays, where it loses, what was not measured, what failed."""
    said = [_verdict_sentence(result) for result in report.workloads.values()]
    said += [said_of for result in report.workloads.values() for said_of in _absence_sentences(result)]
    failed = [name for name, held in report.checks.items() if not held]
    held = len(report.checks) - len(failed)
    said.append(
        f"{held} of {len(report.checks)} checks held."
        + (f" Not held: {', '.join(failed)}." if failed else "")
    )
    said.append("Measured on: " + ", ".join(_machine_words(report.machine)) + ".")
    return said


def _speed_table(report: Report) -> Table:
    table = _table("Speculation by workload (looping answers left out of speeds)")
    table.add_column("workload")
    for column in (
        "n",
        "off\ntok/s",
        "would-be\naccept.",
        "accept.",
        "prod\ntok/s",
        "multiplier\n(95 %)",
        "pre-\ndicted",
        "iden-\ntical",
        "loop-\ning",
    ):
        table.add_column(column, justify="right")
    for result in report.workloads.values():
        table.add_row(
            result.workload,
            f"{result.counted}/{result.prompts}",
            _number(result.off_tok_s, ".1f"),
            _number(result.would_acceptance, ".2f"),
            _number(result.acceptance, ".2f"),
            _number(result.prod_tok_s, ".1f"),
            _interval(result),
            _number(result.predicted_multiplier, ".2f"),
            _number(result.identical_share, ".0%"),
            _number(result.looping_share, ".0%"),
        )
    return table


def _curve_table(report: Report) -> Table:
    table = _table("Predicted multiplier by K, from shadow")
    table.add_column("workload")
    results = list(report.workloads.values())
    for k in results[0].k_curve:
        table.add_column(f"K={k}", justify="right")
    for result in results:
        best = result.best_k
        table.add_row(
            result.workload,
            *(
                Text(_number(value, ".2f"), style="bold" if k == best else "")
                for k, value in result.k_curve.items()
            ),
        )
    return table


def _table(title: str) -> Table:
    """Narrow enough for ten columns in 80 characters."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)


def _verdict_sentence(result: WorkloadResult) -> str:
    multiplier = result.multiplier
    if multiplier.value is None:
        return f"{result.workload}: no multiplier, {result.reasons['multiplier']}."
    numbers = (
        f"{multiplier.value:.2f}x ({multiplier.low:.2f} to {multiplier.high:.2f}, {multiplier.n_spec} pairs)"
    )
    words = {
        Verdict.PAYS: f"speculation pays, {numbers}",
        Verdict.LOSES: f"speculation loses, {numbers}: leave it off",
        Verdict.UNDECIDED: f"no clear gain, {numbers}: the interval includes 1",
        Verdict.TOO_FEW: f"{numbers}: too few pairs to say whether it pays",
    }[result.verdict]
    return f"{result.workload}: {words}.{_advice(result)}"


def _advice(result: WorkloadResult) -> str:
    if result.predicted_multiplier is None:
        return f" Nothing is predicted: {result.reasons['predicted_multiplier']}."
    if result.best_k is None:
        return " Shadow predicts no gain for any K."
    return f" Shadow predicts most from K={result.best_k} ({result.k_curve[result.best_k]:.2f}x)."


def _absence_sentences(result: WorkloadResult) -> list[str]:
    said = []
    if result.not_replayed:
        said.append(_absence(result, result.not_replayed, "shadow", "replayed"))
    if result.not_speculated:
        said.append(_absence(result, result.not_speculated, "prod", "speculated"))
    return said


def _absence(result: WorkloadResult, reasons: Mapping[str, int], mode: str, done: str) -> str:
    counted = ", ".join(f"{reason} {times}" for reason, times in reasons.items())
    return (
        f"{result.workload}: {sum(reasons.values())} of {result.prompts} {mode} answers "
        f"were not {done} ({counted})."
    )


def _machine_words(machine: Mapping[str, Any]) -> list[str]:
    return [f"{name} {value}" for name, value in machine.items() if not isinstance(value, dict)]


def _interval(result: WorkloadResult) -> str:
    multiplier = result.multiplier
    if multiplier.value is None:
        return _ABSENT
    return f"{multiplier.value:.2f} ({multiplier.low:.2f}-{multiplier.high:.2f})"


def _number(value: float | None, form: str) -> str:
    return _ABSENT if value is None else format(value, form)


def _value(value: object) -> str:
    if value is None:
        return _ABSENT
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
