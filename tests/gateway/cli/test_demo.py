import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from gateway.__main__ import main
from gateway.demo import run, setup
from gateway.demo.failure import DemoFailed
from gateway.demo.pace import FULL, QUICK
from gateway.demo.report import Report
from gateway.demo.results import make_report
from tests.fakes.trials import evidence, trial

ASKED: list[dict[str, object]] = []


def fake_run(**asked: object) -> Report:
    ASKED.append(asked)
    return make_report(evidence([trial(name=name) for name in "ab"]), {"cpu": "abacus", "k": 5}, Random(1))


@pytest.fixture(autouse=True)
def _measured_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's signal handler must not outlive the test; nothing is started, so nothing is missing."""
    ASKED.clear()
    monkeypatch.setattr(setup, "refuse_missing", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(run, "run_demo", fake_run)


def test_the_report_is_shown_and_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"

    result = CliRunner().invoke(main, ["demo", "--json", str(path)])

    assert result.exit_code == 0, result.output
    assert "code" in result.output
    assert json.loads(path.read_text())["workloads"]["code"]["multiplier"]["value"] == 2.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"pace": FULL, "dtype": "bfloat16"}),
        (["--quick", "--dtype", "float32"], {"pace": QUICK, "dtype": "float32"}),
    ],
)
def test_flags_choose_what_is_measured(arguments: list[str], expected: dict[str, object]) -> None:
    CliRunner().invoke(main, ["demo", *arguments])

    (asked,) = ASKED
    assert {name: asked[name] for name in expected} == expected


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_report_that_could_not_be_kept_is_refused_before_anything_is_measured(
    option: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["demo", option, str(tmp_path / "no" / "out")])

    assert result.exit_code == 2
    assert option in result.output
    assert "cannot be written: No such file or directory" in result.output
    assert not ASKED


def test_the_page_is_written_and_says_how_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "out.html"

    result = CliRunner().invoke(main, ["demo", "--quick", "--html", str(path)])

    assert result.exit_code == 0, result.output
    assert "ace demo --quick --dtype bfloat16 --html FILE" in path.read_text()


def test_what_the_page_needs_is_asked_for_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*modules: str) -> None:
        raise DemoFailed(f"The demo needs {', '.join(modules)}.")

    monkeypatch.setattr(setup, "refuse_missing", refuse)

    result = CliRunner().invoke(main, ["demo", "--html", str(tmp_path / "out.html")])

    assert (result.exit_code, result.output) == (1, "Error: The demo needs matplotlib, jinja2.\n")
    assert not ASKED


def test_plots_are_loaded_only_for_a_page() -> None:
    modules = "gateway.cli.demo, gateway.demo.run, gateway.demo.render"
    code = f"import sys, {modules}; print(sorted({{'matplotlib', 'jinja2'}} & set(sys.modules)))"

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "[]"


def test_a_failed_demo_leaves_no_empty_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> Report:
        raise DemoFailed("The gateway ended with status 1.")

    monkeypatch.setattr(run, "run_demo", fail)
    CliRunner().invoke(main, ["demo", "--json", str(tmp_path / "out.json")])

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("other", [["--quick"], ["--json", "out.json"], ["--html", "out.html"]])
def test_serving_measures_nothing(other: list[str]) -> None:
    result = CliRunner().invoke(main, ["demo", "--serve", *other])

    assert result.exit_code == 2
    assert "--serve measures nothing" in result.output


def test_a_failed_demo_ends_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> Report:
        raise DemoFailed("The gateway ended with status 1.")

    monkeypatch.setattr(run, "run_demo", fail)

    result = CliRunner().invoke(main, ["demo"])

    assert result.exit_code == 1
    assert result.output == "Error: The gateway ended with status 1.\n"
