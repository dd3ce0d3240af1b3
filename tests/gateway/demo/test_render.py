import io
from random import Random

from rich.console import Console

from gateway.demo.render import sentences, show_backend, show_report
from gateway.demo.report import Evidence, Report, make_report
from tests.fakes.trials import evidence, stage, stages_of, trial


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

    (row,) = [line for line in text.splitlines() if line.startswith("code") and "1/1" in line]
    assert row.split() == ["code", "1/1", "20.0", "-", "-", "-", "-", "-", "100%", "0%"]


def test_sentences_say_where_speculation_pays_and_where_it_loses() -> None:
    trials = [trial("code", str(n)) for n in range(6)]
    trials += [trial("chat", str(n), prod_seconds=2.5) for n in range(6)]
    trials += [trial("rag", str(n), prod_seconds=(1.5, 2.5)[n % 2]) for n in range(6)]

    said = sentences(report_of(evidence(trials)))

    assert said[0].startswith(
        "code: speculation pays, 2.00x (2.00 to 2.00, 6 pairs). Shadow predicts most from K="
    )
    assert said[1].startswith("chat: speculation loses, 0.80x (0.80 to 0.80, 6 pairs): leave it off.")
    assert said[2].startswith("rag: no clear gain, 1.0")


def test_sentences_count_what_was_not_measured_with_its_reasons() -> None:
    trials = [trial(name=str(n)) for n in range(6)]
    stages = stages_of(trials) | {
        "shadow-code-0": stage("skip", reason="runner_unavailable"),
        "shadow-code-1": stage("skip", reason="queue_full"),
        "prod-code-0": stage("bypass", reason="no_executor"),
    }

    said = sentences(report_of(evidence(trials, stages=stages)))

    assert "code: 2 of 6 shadow answers were not replayed (runner_unavailable 1, queue_full 1)." in said
    assert "code: 1 of 6 prod answers were not speculated (no_executor 1)." in said


def test_sentences_name_the_checks_that_did_not_hold() -> None:
    said = sentences(report_of(evidence([trial(name=str(n), prod_seconds=1.5) for n in range(6)])))

    assert said[-2] == "3 of 5 checks held. Not held: prod_ge_1_8_code, predicted_within_15pct_code."


def test_sentences_end_with_the_machine() -> None:
    assert sentences(whole_report())[-1] == "Measured on: cpu abacus, cores 2."


def test_a_backend_is_shown_with_its_findings_and_executors() -> None:
    console = Console(file=io.StringIO(), width=80)
    finding = {"capability": "models", "support": "yes", "evidence": "HTTP [200]", "value": ["m1", "m2"]}
    executor = {"name": "in_engine", "possible": True, "sentence": "in_engine is possible."}

    show_backend(console, {"name": "b1", "kind": "embedded", "findings": [finding], "executors": [executor]})

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for shown in ("at b1", "(embedded)", "models", "yes", "m1, m2", "HTTP [200]", "in_engine is possible."):
        assert shown in text
