import io
from random import Random

from rich.console import Console

from gateway.demo.calibrate import Costs
from gateway.demo.render import show_backend, show_report
from gateway.demo.report import Report
from gateway.demo.results import Evidence, make_report
from tests.fakes.trials import evidence, replay, replayed, stages_of, trial, without_loop


def report_of(found: Evidence) -> Report:
    return make_report(found, {"cpu": "abacus", "cores": 2, "pass_seconds": {"1": 0.02}}, Random(1))


def whole_report() -> Report:
    workloads = ("code", "rag", "summarise", "chat", "creative")
    return report_of(evidence([trial(workload, str(n)) for workload in workloads for n in range(6)]))


def printed(report: Report, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_report(console, report)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_tables_fit_a_narrow_terminal_without_losing_a_number() -> None:
    text = printed(whole_report())

    assert "…" not in text
    assert "summarise" in text
    assert "2.00 (2.00-2.00)" in text
    assert "K=8" in text


def test_what_was_not_measured_is_a_dash() -> None:
    text = printed(report_of(evidence([trial()], stages={}, pass_seconds={})))

    rows = [line.split() for line in text.splitlines() if line.startswith("code ")]
    assert rows == [
        ["code", "1/1", "20.0", "-", "-", "-", "-", "-", "100%", "0%"],
        ["code", "0/1", "-", "-", "-", "-", "100%"],
        ["code", *"--------"],
        ["code", "ngram", "-", "-", "-"],
    ]


def test_every_drafter_has_a_row() -> None:
    trials = [trial(name=str(n)) for n in range(6)]
    none_gains = replay(accepted_tokens=10, passes_by_drafts={k: {k: 41} for k in range(1, 9)})
    stages = stages_of(trials) | {
        one.shadow.request_id: replayed(compared={"draft_model": none_gains}) for one in trials
    }
    loop = {"ngram": Costs(plain_seconds=0.02, pass_seconds={1: 0.02, 9: 0.04})}

    text = printed(report_of(evidence(trials, stages=stages, loop_costs=loop)))

    rows = [line.split() for line in text.splitlines()]
    assert ["code", "ngram", "0.80", "2.00", "(K=1)", "1.95", "(K=1)"] in rows
    assert ["code", "draft_model", "0.50", "no", "gain", "-"] in rows


def test_a_backend_is_shown_with_its_findings_and_executors() -> None:
    console = Console(file=io.StringIO(), width=80)
    finding = {"capability": "models", "support": "yes", "evidence": "HTTP [200]", "value": ["m1", "m2"]}
    executor = {"name": "in_engine", "possible": True, "sentence": "in_engine is possible."}

    show_backend(console, {"name": "b1", "kind": "embedded", "findings": [finding], "executors": [executor]})

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for shown in ("at b1", "(embedded)", "models", "yes", "m1, m2", "HTTP [200]", "in_engine is possible."):
        assert shown in text


def test_a_demo_without_the_loop_has_no_table_of_it() -> None:
    trials = [without_loop(trial(name=str(n))) for n in range(6)]

    assert "carried out by gateway_loop" in printed(whole_report())
    assert "carried out by gateway_loop" not in printed(report_of(evidence(trials)))
