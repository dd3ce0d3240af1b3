"""What every run of the tests understands besides pytest's own options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.fakes.postgres import PostgresServer
from tests.skips import SkipWatch, read_allowed

pytest_plugins = ["pytester"]

# A machine that is slow, or busy, is no failure.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--only-skip FILE`, with which the make targets run."""
    parser.addoption(
        "--only-skip", type=Path, metavar="FILE", help="fail if a test is skipped that FILE does not name"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch for skips in the process that reports them, which workers of a parallel run are not."""
    file: Path | None = config.getoption("--only-skip")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipWatch(read_allowed(file)), "skip-watch")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, for tests marked `ops`. One that hurts it starts its own."""
    with PostgresServer() as server:
        yield server
