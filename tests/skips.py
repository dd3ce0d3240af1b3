"""A skipped test is a test that nobody ran: only those that a file names may be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest


class SkipWatch:
    """Fails a run in which a test was skipped that is not allowed to be, and says which and why.

    Args:
        allowed: Node ids as pytest prints them; a file's or a test's own stands for all within it.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)
        self._strange: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at a test."""
        if not hasattr(report, "wasxfail"):
            self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Look at a file, which may skip itself as a whole."""
        self._look_at(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let the run fail, unless it has failed anyway."""
        if self._strange and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what must not have been skipped."""
        if self._strange:
            terminalreporter.section("skipped, and not allowed to be")
        for name, reason in self._strange.items():
            terminalreporter.line(f"{name}: {reason}")

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        file, test = report.nodeid.partition("::")[0], report.nodeid.partition("[")[0]
        if report.skipped and not {file, test, report.nodeid} & self._allowed:
            self._strange[report.nodeid] = _reason(report.longrepr)


def read_allowed(file: Path) -> tuple[str, ...]:
    """The node ids in `file`, one a line; lines that begin with `#` say why."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
