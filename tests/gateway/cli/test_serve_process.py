"""`ace serve` as a process: what is logged over all its workers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class Served:
    """A gateway with two workers."""

    def __init__(self, folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--workers", "2"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("ACE_")}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, "--data", str(folder / "data")], cwd=ROOT, env=env, stdout=out, stderr=err
            )
        self.url = until(self._listening_at)
        until(lambda: answers(f"{self.url}/healthz"))

    def _listening_at(self) -> str | None:
        found = re.search(r"metrics: +(\S+)/metrics\n", self.stderr)
        return found[1] if found else None

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def access_lines(self) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self._out.read_text().splitlines()]
        return [line for line in lines if line["log"] == "ace.access"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def until(seen: Callable[[], str | None]) -> str:
    """What `seen` sees, as soon as it sees anything."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := seen():
            return found
        time.sleep(0.05)
    raise TimeoutError("what was waited for did not come")


def answers(url: str) -> str | None:
    try:
        return str(httpx.get(url).status_code)
    except httpx.TransportError:
        return None


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    try:
        yield served
    finally:
        served.stop()


def test_every_request_leaves_one_whole_line_and_a_stop_loses_none(served: Served) -> None:
    for number in range(20):
        httpx.get(f"{served.url}/v1/models", headers={"x-request-id": f"request-{number}"})
    served.stop()
    seen = [line["request_id"] for line in served.access_lines()]
    assert len([name for name in seen if str(name).startswith("request-")]) == 20


def test_the_admin_token_is_printed_once_on_stderr(served: Served, tmp_path: Path) -> None:
    served.stop()
    assert served.stderr.count("ace-admin-") == 1
    again = Served(tmp_path)
    again.stop()
    assert "ace-admin-" not in again.stderr
