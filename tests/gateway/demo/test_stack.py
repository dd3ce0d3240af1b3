import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.demo.failure import DemoFailed
from gateway.demo.stack import HOST, Part, PartProcess, free_ports, usual_ports
from tests.fakes.clock import FakeClock
from tests.fakes.upstream import Upstream

SLEEPER = "import time\nprint('up and asleep', flush=True)\ntime.sleep(600)\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
FAILING = "raise SystemExit('no model here')\n"
TELLING = "import os\nprint({n: v for n, v in os.environ.items() if n.startswith('ACE_')}, flush=True)\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files can be run as `python -m`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, text in {"sleeper": SLEEPER, "deaf": DEAF, "failing": FAILING, "telling": TELLING}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def process(
    modules: Path, module: str, ready_url: str = "http://127.0.0.1:1/", **environment: str
) -> PartProcess:
    part = Part(
        name="part", arguments=(module,), environment=environment, ready_url=ready_url, time_limit_s=60
    )
    return PartProcess(part, modules / "log")


@pytest.fixture
def sleeping(modules: Path) -> Iterator[PartProcess]:
    started = process(modules, "sleeper")
    yield started
    started.end()


def wait_for_log(modules: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in (modules / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_part_is_ready_when_its_page_answers_200(modules: Path) -> None:
    statuses = iter(["503 Service Unavailable", "200 OK"])
    clock = FakeClock()
    with Upstream(lambda talk: talk.answer(status=next(statuses))) as upstream:
        started = process(modules, "sleeper", f"{upstream.url}/ready")
        try:
            started.wait_until_ready(clock, clock.advance)
        finally:
            started.end()

    assert [request.target for request in upstream.requests] == ["/ready", "/ready"]


def test_a_part_that_ends_first_is_reported_with_its_log(modules: Path) -> None:
    started = process(modules, "failing")

    with pytest.raises(DemoFailed, match=r"(?s)The part ended with status 1\..*no model here"):
        started.wait_until_ready(time.monotonic, time.sleep)
    started.end()


def test_a_part_that_takes_too_long_is_reported_with_its_log(modules: Path, sleeping: PartProcess) -> None:
    wait_for_log(modules, "up and asleep")
    clock = FakeClock()

    with pytest.raises(DemoFailed, match=r"(?s)not ready after 60 s \(http.*up and asleep"):
        sleeping.wait_until_ready(clock, lambda _: clock.advance(50))


def test_a_running_part_is_not_reported(sleeping: PartProcess) -> None:
    sleeping.refuse_ended()


@pytest.mark.parametrize("module", ["sleeper", "deaf"])
def test_an_ended_part_has_left_no_process(
    modules: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.demo.stack._END_S", 0.2)
    started = process(modules, module)
    wait_for_log(modules, "up and asleep")

    started.end()

    assert not is_alive(started.pid)


def test_ending_a_part_twice_is_harmless(sleeping: PartProcess) -> None:
    sleeping.end()
    sleeping.end()


def test_a_part_gets_its_own_settings_and_nobody_elses(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACE_POLICY_PATH", "/somebody/elses.yaml")
    started = process(modules, "telling", ACE_ADMIN_TOKEN="made-up")
    wait_for_log(modules, "}")
    started.end()

    assert (modules / "log").read_text().strip() == "{'ACE_ADMIN_TOKEN': 'made-up'}"


def test_free_ports_differ() -> None:
    ports = free_ports()

    assert len({ports.gateway, ports.backend, ports.runner}) == 3


def test_a_usual_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    with closing(socket.socket()) as taken:
        # Else a connection that has just ended there keeps the port from being taken.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((HOST, 8100))
            taken.listen()
        except OSError:
            pass  # somebody else has taken it, which serves as well
        assert usual_ports().backend != 8100
