"""A gateway of two workers reads as one, also while one of them is killed (BR-C14)."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.processes import ADMIN_TOKEN, Part, until
from tests.fakes.served import served

pytestmark = [pytest.mark.integration, pytest.mark.slow]

POLICY = """
version: 1
rules:
  - {name: all, mode: prod, experimental: true, draft: ngram, prod: {control: {fraction: 0}}}
"""
ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}
REQUESTS = 200
QUICK: dict[str, Any] = {"trust_env": False, "verify": False, "timeout": 30}
"""Without reading certificates for each call, which takes longer than the call."""
ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "a b a b a b"}],
    "temperature": 0,
    "max_tokens": 16,
}


@contextmanager
def gateway_of(workers: int, folder: Path, backend: str, **env: str) -> Iterator[Part]:
    """A gateway process whose every worker knows the backend."""
    (folder / "policy.yaml").write_text(POLICY)
    arguments = ("serve", "--data", str(folder / "data"), "--policy", str(folder / "policy.yaml"))
    variables = {"ACE_ADMIN_TOKEN": ADMIN_TOKEN, "ACE_WORKERS": str(workers), **env}
    with Part("gateway", arguments, folder / "gateway.log", variables) as gateway:
        added = httpx.post(
            f"{gateway.url}/admin/v1/backends", json={"name": "b", "url": backend}, headers=ADMIN, timeout=60
        )
        assert added.status_code in (201, 409), added.text
        until(lambda: serving(gateway, workers), "every worker serving the model")
        yield gateway


def serving(gateway: Part, workers: int) -> bool:
    """Whether every worker answers, and each lists the backend's model."""
    answers = [httpx.get(f"{gateway.url}/admin/v1/installation", headers=ADMIN, **QUICK) for _ in range(12)]
    pids = {answer.json()["pid"] for answer in answers}
    return len(pids) == workers and all('"m"' in fetched(gateway, "/v1/models") for _ in range(12))


def fetched(gateway: Part, path: str) -> str:
    """A page, on a connection of its own so that any worker may answer."""
    headers = ADMIN if path.startswith("/admin") else {}
    return httpx.get(f"{gateway.url}{path}", headers=headers, **QUICK).text


def ask(gateway: Part, **changes: Any) -> int:
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=ASKED | changes, **QUICK)
    return answer.status_code


def counted(gateway: Part) -> float:
    """Requests of mode prod that the page shows."""
    page = fetched(gateway, "/metrics")
    return sum(float(n) for n in re.findall(r'^ace_requests_total\{.*mode="prod".*\} (\S+)$', page, re.M))


def settled(gateway: Part, at_least: float) -> float:
    """What is counted once the last answers are: a client may have read one before it has been."""
    return until(lambda: found if (found := counted(gateway)) >= at_least else None, f"{at_least} counted")


def workers_of(gateway: Part) -> set[int]:
    parent = gateway.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with served(OpenAIServer().app) as url:
        yield url


@pytest.fixture
def gateway(backend: str, tmp_path: Path) -> Iterator[Part]:
    with gateway_of(2, tmp_path, backend) as running:
        yield running


class Scrapes:
    """Reads the page again and again, until left."""

    def __init__(self, gateway: Part) -> None:
        self.seen: list[float] = []
        self._gateway = gateway
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Scrapes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.seen.append(counted(self._gateway))
            except httpx.TransportError:
                continue  # the worker that was killed had this connection
            self._stop.wait(0.02)


def test_200_requests_read_200_at_every_later_scrape_and_never_less_than_before(gateway: Part) -> None:
    with Scrapes(gateway) as scrapes:
        assert {ask(gateway) for _ in range(REQUESTS)} == {200}
    assert scrapes.seen == sorted(scrapes.seen)
    assert len(scrapes.seen) > 2
    assert settled(gateway, REQUESTS) == REQUESTS
    assert [counted(gateway) for _ in range(20)] == [REQUESTS] * 20


def test_a_worker_that_is_killed_takes_no_count_along_and_its_successor_goes_on(gateway: Part) -> None:
    for _ in range(40):
        ask(gateway)
    answered = sent = settled(gateway, 40)
    assert sent == 40
    victim = min(workers_of(gateway))
    with Scrapes(gateway) as scrapes:
        os.kill(victim, signal.SIGKILL)
        for _ in range(REQUESTS):
            sent += 1
            try:
                answered += ask(gateway) == 200
            except httpx.TransportError:
                continue
    assert scrapes.seen == sorted(scrapes.seen)
    until(lambda: len(workers_of(gateway) - {victim}) == 2, "a new worker")
    total = settled(gateway, answered)
    assert total <= sent
    for number in range(1, 21):
        ask(gateway)
        assert settled(gateway, total + number) == total + number


def test_every_worker_shows_the_same_stage_records_and_the_same_summary(gateway: Part) -> None:
    for _ in range(40):
        ask(gateway)

    def stored() -> bool:
        stages: list[object] = httpx.get(
            f"{gateway.url}/admin/v1/stages", params={"limit": 100}, headers=ADMIN
        ).json()["stages"]
        return len(stages) == 40

    until(stored, "40 stage records in the store")
    for path in ("/admin/v1/stages?limit=100", "/admin/v1/summary", "/admin/v1/policy", "/admin/v1/runners"):
        pages = {re.sub(r'"loaded_at":[\d.]+', "", fetched(gateway, path)) for _ in range(12)}
        assert len(pages) == 1, path


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_earlier_run_counted_does_not_count(backend: str, tmp_path: Path, workers: int) -> None:
    old = tmp_path / "counters"
    old.mkdir()
    with gateway_of(2, tmp_path, backend, TMPDIR=str(tmp_path)) as first:
        ask(first)
        assert settled(first, 1) == 1
        (live,) = tmp_path.glob("ace-metrics-*")
        for file in live.glob("counter_*.db"):
            (old / file.name).write_bytes(file.read_bytes())
    assert list(old.iterdir())
    with gateway_of(workers, tmp_path, backend, PROMETHEUS_MULTIPROC_DIR=str(old)) as second:
        assert counted(second) == 0
        ask(second)
        assert settled(second, 1) == 1


def test_a_stream_that_a_stopping_gateway_lets_end_is_recorded_as_completed(tmp_path: Path) -> None:
    server = OpenAIServer()
    with served(server.app) as url, gateway_of(2, tmp_path, url) as gateway:
        server.token_s = 0.05
        asked = ASKED | {"stream": True}
        with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=asked, timeout=30) as answer:
            received = ""
            for text in answer.iter_text():
                if not received:
                    gateway.process.send_signal(signal.SIGTERM)
                received += text
        assert "[DONE]" in received
        gateway.process.wait(30)
    log = (tmp_path / "gateway.log").read_text()
    lines = [line for line in log.splitlines() if '"path":"/v1/chat/completions"' in line]
    assert len(lines) == 1
    assert '"ending":"completed"' in lines[0]
