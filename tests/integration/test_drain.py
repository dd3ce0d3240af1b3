"""SIGTERM of a gateway that is being used: who notices, and what is written down."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tests.fakes.processes import ADMIN_TOKEN, Part, until
from tests.fakes.raw_http import Answer, RawClient, ask, get, post
from tests.fakes.upstream import Conversation, Upstream

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DELAY_S = 2.0
FOREVER_S = "600"
STREAMS = 6
QUICK = post(b'{"model": "m1", "messages": [{"role": "user", "content": "quick"}]}')
STREAM = post(b'{"model": "m1", "messages": [{"role": "user", "content": "stream"}], "stream": true}')
FLOOD = post(b'{"model": "m1", "messages": [{"role": "user", "content": "flood"}], "stream": true}')
SILENT = post(b'{"model": "m1", "messages": [{"role": "user", "content": "silent"}]}')
WORDS = b'data: {"choices": [{"index": 0, "delta": {"content": "word "}}]}\n\n'
LAST = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


class Model:
    """A model server that answers at once, streams until `finish` is set, or says nothing at all.

    Attributes:
        flooded: Set when nobody has taken more of a stream for half a second.
    """

    def __init__(self) -> None:
        self.finish = threading.Event()
        self.flooded = threading.Event()

    def __call__(self, conversation: Conversation) -> None:
        """Serve one request."""
        request = conversation.request
        if request.target == "/v1/models":
            conversation.answer(b'{"object": "list", "data": [{"id": "m1", "object": "model"}]}')
        elif b'"content": "stream"' in request.body:
            conversation.start_stream()
            while not self.finish.wait(0.05):
                conversation.chunk(WORDS)
            conversation.chunk(LAST)
            conversation.end_stream()
        elif b"flood" in request.body:
            conversation.start_stream()
            self._flood(conversation)
        elif b"silent" in request.body:
            conversation.wait_for_hang_up()
        elif b"quick" in request.body:
            conversation.answer(b'{"choices": [{"index": 0, "finish_reason": "stop"}]}')
        else:
            conversation.answer(b'{"error": {}}', status="404 Not Found")

    def _flood(self, conversation: Conversation) -> None:
        while not self.finish.is_set():
            slow = threading.Timer(0.5, self.flooded.set)
            slow.start()
            try:
                conversation.chunk(WORDS * 1000)
            except OSError:
                return
            finally:
                slow.cancel()


class Served(AbstractContextManager["Served"]):
    """A gateway with an operations port, ended when left."""

    def __init__(self, folder: Path, *, workers: int, **settings: str) -> None:
        self._log = folder / "gateway.log"
        env = {
            "ACE_ADMIN_TOKEN": ADMIN_TOKEN,
            "ACE_OPERATIONS_PORT": "0",
            "ACE_DRAIN_DELAY_S": str(DELAY_S),
            **settings,
        }
        arguments = ("serve", "--data", str(folder / "data"), "--workers", str(workers))
        self.part = Part("gateway", arguments, self._log, env)

    def __enter__(self) -> Self:
        self.part.__enter__()
        self.port = int(self.part.url.rpartition(":")[2])
        self.operations = re.findall(r"metrics: +(\S+)/metrics\n", self._log.read_text())[-1]
        until(lambda: self.ready() == 200, "readiness")
        return self

    def __exit__(self, *error: object) -> None:
        self.part.__exit__(*error)

    def ready(self) -> int | None:
        """What `/readyz` says; None where nothing answers."""
        return self._answer("/readyz")

    def alive(self) -> int | None:
        """What `/healthz` says; None where nothing answers."""
        return self._answer("/healthz")

    def _answer(self, path: str) -> int | None:
        try:
            return httpx.get(f"{self.operations}{path}", trust_env=False).status_code
        except httpx.TransportError:
            return None

    def takes_connections(self) -> bool:
        try:
            return ask(self.port, get("/v1/models")).status == 200
        except (OSError, IndexError):
            return False

    def workers(self) -> list[int]:
        """The processes that serve."""
        pid = self.part.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [
            int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to stop, as whatever runs it does."""
        self.part.process.send_signal(number)

    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.part.process.poll() is not None

    def access_lines(self) -> list[dict[str, Any]]:
        """The access log."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in map(json.loads, lines) if line["log"] == "ace.access"]


@pytest.fixture(scope="module")
def backend() -> Iterator[Upstream]:
    """One server for all tests, because it is registered once."""
    with Upstream(Model()) as upstream:
        yield upstream


@pytest.fixture
def model(backend: Upstream) -> Iterator[Model]:
    """What the backend does in this test."""
    backend.script = model = Model()
    backend.requests.clear()
    yield model
    model.finish.set()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, backend: Upstream) -> Path:
    """A data folder in which the backend is registered, so that every worker knows it from its start."""
    folder = tmp_path_factory.mktemp("registered")
    with Served(folder, workers=1, ACE_DRAIN_DELAY_S="0") as served:
        asked = {"name": "b1", "url": backend.url}
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        httpx.post(f"{served.part.url}/admin/v1/backends", json=asked, headers=headers, timeout=60)
    return folder / "data"


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path, data: Path, model: Model) -> Iterator[Serve]:
    """Starts a gateway, which has ended when the test has."""
    with ExitStack() as running:

        def start(*, workers: int, **settings: str) -> Served:
            shutil.copytree(data, tmp_path / "data")
            return running.enter_context(Served(tmp_path, workers=workers, **settings))

        yield start


class Regular(threading.Thread):
    """Sends requests one after the other on a kept connection, as long as the gateway says it is ready."""

    def __init__(self, served: Served) -> None:
        super().__init__()
        self._served = served
        self.answers: list[Answer] = []
        self.failures: list[Exception] = []
        self.told_to_move = 0
        self.leave = threading.Event()

    def run(self) -> None:
        """Go on until `leave` is set."""
        client = RawClient(self._served.port)
        try:
            while not self.leave.is_set():
                client.send(QUICK)
                self.answers.append(answer := client.read_answer())
                if answer.header("connection") == "close":
                    self.told_to_move += 1
                    client.close()
                    client = RawClient(self._served.port)
        except (OSError, AssertionError, IndexError) as error:
            self.failures.append(error)
        finally:
            client.close()


def started_stream(served: Served) -> RawClient:
    """A client that has begun to read a stream."""
    client = RawClient(served.port)
    client.send(STREAM)
    return client


@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_fails_while_a_gateway_drains(serve: Serve, model: Model, workers: int) -> None:
    served = serve(workers=workers, ACE_DRAIN_TIMEOUT_S=FOREVER_S)
    before = len(served.access_lines())
    streams = [started_stream(served) for _ in range(STREAMS)]
    heads = [stream.read_head() for stream in streams]
    assert all(status == 200 for status, _ in heads)
    regulars = [Regular(served) for _ in range(4)]
    for regular in regulars:
        regular.start()
    served.stop()
    # As whatever routes requests here does: it takes the gateway off its list when it is not ready.
    until(lambda: served.ready() == 503, "a gateway that is not ready")
    assert served.alive() == 200
    # Until then, and some way beyond, connections are still taken.
    until(lambda: all(regular.told_to_move for regular in regulars), "clients that were told to move")
    for regular in regulars:
        regular.leave.set()
        regular.join()
    assert [failure for regular in regulars for failure in regular.failures] == []
    answers = [answer for regular in regulars for answer in regular.answers]
    assert {(answer.status, answer.whole) for answer in answers} == {(200, True)}

    until(lambda: not served.takes_connections(), "the end of new connections")
    assert (served.ready(), served.alive()) == (503, 200)
    assert "ace_requests_total" in httpx.get(f"{served.operations}/metrics").text
    model.finish.set()
    for stream in streams:
        assert LAST.rstrip() in stream.read_until(b"[DONE]\n\n\r\n0\r\n\r\n")
        stream.close()
    until(served.ended, "the end of the process")
    lines = [line for line in served.access_lines()[before:] if line["path"].endswith("/completions")]
    assert len(lines) >= len(answers) + STREAMS
    assert {line["ending"] for line in lines} == {"completed"}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_outlasts_the_drain_is_cut_with_an_error_and_written_down(
    serve: Serve, backend: Upstream, workers: int
) -> None:
    served = serve(workers=workers, ACE_DRAIN_DELAY_S="0", ACE_DRAIN_TIMEOUT_S="1")
    with started_stream(served) as stream, RawClient(served.port) as silent:
        silent.send(SILENT)
        stream.read_until(b"word")
        until(lambda: any(b"silent" in request.body for request in backend.requests), "the silent request")
        served.stop()
        rest = stream.read_until(b"0\r\n\r\n")
        refusal = silent.read_answer()
    event = json.loads(rest.rpartition(b"data: ")[2].partition(b"\n")[0])
    assert event["error"]["code"] == "gateway_stopping"
    assert b"[DONE]" not in rest
    assert refusal.status == 503
    assert refusal.header("retry-after") == "1"
    assert json.loads(refusal.body)["error"]["code"] == "gateway_stopping"
    until(served.ended, "the end of the process")
    assert sorted(line["ending"] for line in served.access_lines()[-2:]) == ["gateway_stopping"] * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_the_drain(serve: Serve, workers: int) -> None:
    served = serve(workers=workers, ACE_DRAIN_DELAY_S=FOREVER_S, ACE_DRAIN_TIMEOUT_S=FOREVER_S)
    with started_stream(served) as stream:
        stream.read_until(b"word")
        served.stop()
        until(lambda: served.ready() == 503, "a gateway that is not ready")
        # The supervisor of workers looks for signals every half second, and two at once are one to it.
        until(lambda: _asked_again(served), "the end of the process")
        assert b"gateway_stopping" in stream.read_until(b"0\r\n\r\n")
    assert served.access_lines()[-1]["ending"] == "gateway_stopping"


def _asked_again(served: Served) -> bool:
    served.stop(signal.SIGINT)
    return served.ended()


def test_a_client_that_reads_nothing_holds_up_no_stop(serve: Serve, model: Model) -> None:
    served = serve(workers=1, ACE_DRAIN_DELAY_S="0", ACE_DRAIN_TIMEOUT_S="1")
    with socket.create_connection(("127.0.0.1", served.port)) as deaf:
        deaf.sendall(FLOOD)
        until(lambda: model.flooded.is_set(), "a stream that is held up")
        served.stop()
        until(served.ended, "the end of the process", 30)
    assert served.access_lines()[-1]["ending"] != "completed"


def test_signals_that_reach_workers_past_their_parent_cut_nothing(serve: Serve, model: Model) -> None:
    served = serve(workers=2, ACE_DRAIN_DELAY_S="0", ACE_DRAIN_TIMEOUT_S=FOREVER_S)
    with started_stream(served) as stream:
        stream.read_until(b"word")
        for number in (signal.SIGINT, signal.SIGTERM):
            for pid in served.workers():
                os.kill(pid, number)
        served.stop()
        until(lambda: not served.takes_connections(), "the end of new connections")
        model.finish.set()
        assert b"[DONE]" in stream.read_until(b"0\r\n\r\n")
    until(served.ended, "the end of the process")
    assert served.access_lines()[-1]["ending"] == "completed"


def test_ctrl_c_drains_too(serve: Serve, model: Model) -> None:
    served = serve(workers=1, ACE_DRAIN_DELAY_S="0", ACE_DRAIN_TIMEOUT_S=FOREVER_S)
    with started_stream(served) as stream:
        stream.read_until(b"word")
        served.stop(signal.SIGINT)
        until(lambda: not served.takes_connections(), "the end of new connections")
        model.finish.set()
        assert b"[DONE]" in stream.read_until(b"0\r\n\r\n")
    until(served.ended, "the end of the process")
    assert served.part.process.returncode == 0
