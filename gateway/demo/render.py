"""The demo's findings, tables and sentences on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.demo.report import Multiplier, Predicted, Report
from gateway.demo.sentences import sentences

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
    for table in _tables(report):
        console.print(table)
        console.print()
    for sentence in sentences(report):
        console.print(Text(sentence))


def _tables(report: Report) -> Iterator[Table]:
    yield _speed_table(report)
    if any(result.gateway_loop for result in report.workloads.values()):
        yield _loop_table(report)
    yield _curve_table(report)
    yield _drafter_table(report)


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
            _number(result.off.value, ".1f"),
            _number(result.shadow.acceptance, ".2f"),
            _number(result.in_engine.acceptance, ".2f"),
            _number(result.in_engine.tok_s.value, ".1f"),
            _interval(result.in_engine.multiplier),
            _number(result.shadow.in_engine.at_k, ".2f"),
            _number(result.in_engine.identical_share, ".0%"),
            _number(result.looping_share, ".0%"),
        )
    return table


def _loop_table(report: Report) -> Table:
    table = _table("The same with prod carried out by gateway_loop")
    table.add_column("workload")
    for column in ("n", "tok/s", "multiplier (95 %)", "accept.", "predicted", "identical"):
        table.add_column(column, justify="right")
    for result in report.workloads.values():
        found = result.gateway_loop
        if found is None:
            continue
        table.add_row(
            result.workload,
            f"{found.multiplier.n_spec}/{result.prompts}",
            _number(found.tok_s.value, ".1f"),
            _interval(found.multiplier),
            _number(found.acceptance, ".2f"),
            _number(result.shadow.gateway_loop.at_k, ".2f"),
            _number(found.identical_share, ".0%"),
        )
    return table


def _curve_table(report: Report) -> Table:
    table = _table("Multiplier by K inside the engine: predicted from shadow, and below it measured")
    table.add_column("workload")
    results = list(report.workloads.values())
    for k in results[0].shadow.in_engine.by_k:
        table.add_column(f"K={k}", justify="right")
    for result in results:
        curve, best = result.shadow.in_engine.by_k, result.shadow.in_engine.best_k
        table.add_row(
            result.workload,
            *(Text(_number(value, ".2f"), style="bold" if k == best else "") for k, value in curve.items()),
        )
        measured = result.measured_curve
        table.add_row("", *(_number(measured[k].value, ".2f") if k in measured else "" for k in curve))
    return table


def _drafter_table(report: Report) -> Table:
    table = _table("Drafters replayed on the same answers, and what their best K is predicted to gain")
    for column in ("workload", "drafter"):
        table.add_column(column)
    for column in ("would-be accept.", "in_engine", "gateway_loop"):
        table.add_column(column, justify="right")
    for result in report.workloads.values():
        for name, found in result.drafters.items():
            acceptance = _number(found.acceptance, ".2f")
            table.add_row(
                result.workload, name, acceptance, _best(found.in_engine), _best(found.gateway_loop)
            )
    return table


def _best(predicted: Predicted) -> str:
    if predicted.at_k is None:
        return _ABSENT
    return "no gain" if predicted.best is None else f"{predicted.best:.2f} (K={predicted.best_k})"


def _table(title: str) -> Table:
    """Narrow enough for ten columns in 80 characters."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)


def _interval(multiplier: Multiplier) -> str:
    if multiplier.value is None:
        return _ABSENT
    return f"{multiplier.value:.2f} ({multiplier.low:.2f}-{multiplier.high:.2f})"


def _number(value: float | None, form: str) -> str:
    return _ABSENT if value is None else format(value, form)


def _value(value: object) -> str:
    if value is None:
        return _ABSENT
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
