"""`ace serve --fleet` as a process: backends from a file, on real sockets."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.fakes.processes import Part, until
from tests.fakes.served import served

ADMIN = "an-admin-token-of-the-tests"

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class Front:
    """A gateway that follows a fleet file, and clients of it."""

    def __init__(self, folder: Path, *backends: str) -> None:
        self.file = folder / "fleet.yaml"
        self.write(*backends)
        self.part = Part(
            "gateway",
            ("serve", "--data", str(folder / "data"), "--fleet", str(self.file), "--workers", "2"),
            folder / "gateway.log",
            {"ACE_ADMIN_TOKEN": ADMIN},
        )

    def write(self, *backends: str) -> None:
        self.file.write_text("version: 1\nbackends:\n" + "".join(f"  - {backend}\n" for backend in backends))

    def get(self, path: str) -> Any:
        headers = {"authorization": f"Bearer {ADMIN}"}
        return httpx.get(self.part.url + path, headers=headers, trust_env=False).json()

    def states(self) -> dict[str, str]:
        return {backend["name"]: backend["state"] for backend in self.get("/admin/v1/backends")["backends"]}

    def serves(self) -> bool:
        """Whether every worker does."""
        body = {"model": "m", "prompt": "one two", "max_tokens": 2}
        replies = (
            httpx.post(f"{self.part.url}/v1/completions", json=body, trust_env=False) for _ in range(10)
        )
        return {reply.status_code for reply in replies} == {200}

    def warned_of(self, words: str) -> bool:
        return any(words in warning for warning in self.get("/readyz")["warnings"])

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.part.url}/metrics", trust_env=False).text
        found = re.search(rf"^{name} (\S+)$", page, re.M)
        return float(found[1]) if found else -1.0


@pytest.fixture
def servers() -> Iterator[list[str]]:
    with served(OpenAIServer().app) as one, served(OpenAIServer().app) as two:
        yield [one, two]


def test_backends_come_go_and_stay_with_the_file(tmp_path: Path, servers: list[str]) -> None:
    pair = f"{{name: pair, urls: {servers}, kind: openai}}"
    front = Front(tmp_path, pair)
    with front.part:
        until(lambda: front.states() == {"pair": "up"}, "the pair")
        until(front.serves, "answers of every worker")
        front.write(pair, f"{{name: solo, url: '{servers[0]}', kind: openai}}")
        until(lambda: front.states() == {"pair": "up", "solo": "up"}, "the second backend")
        front.write("{name: pair, urls: }")
        until(lambda: front.metric("ace_fleet_rejected") == 1, "the refusal")
        assert front.states() == {"pair": "up", "solo": "up"}
        until(lambda: front.warned_of("fleet.yaml:3"), "the warning")
        front.write(pair)
        until(lambda: front.states() == {"pair": "up"}, "the second backend's end")
        until(lambda: front.metric("ace_fleet_rejected") == 0, "the end of the refusal")
        assert front.serves()


def test_a_bad_file_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    front = Front(tmp_path, "{name: pair, urls: }")
    with pytest.raises(AssertionError, match=r"fleet\.yaml:3: backend 'pair'"), front.part:
        pass


SERVER = """
import socket, sys, uvicorn
from tests.fakes.openai_server import OpenAIServer
config = uvicorn.Config(OpenAIServer().app, log_level="error")
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""


@contextlib.contextmanager
def server_process() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A model server in a process of its own, which may be killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(number)], pass_fds=[number])
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield url, process
    finally:
        process.kill()
        process.wait()


def test_killing_an_instance_costs_no_request_that_another_could_serve(tmp_path: Path) -> None:
    """A request that it had been given may have run, so that one alone is not tried elsewhere."""
    with server_process() as (one, dying), server_process() as (two, _):
        front = Front(tmp_path, f"{{name: pair, urls: ['{one}', '{two}'], kind: openai}}")
        with front.part, httpx.Client(base_url=front.part.url, trust_env=False) as client:
            until(lambda: front.states() == {"pair": "up"}, "the pair")
            until(front.serves, "answers of every worker")
            under_way = threading.Event()

            def one_client(_: int) -> list[str]:
                codes = []
                for _turn in range(50):
                    body = {"model": "m", "prompt": "one two", "max_tokens": 2}
                    reply = client.post("/v1/completions", json=body)
                    codes.append("ok" if reply.status_code == 200 else reply.json()["error"]["code"])
                    under_way.set()
                return codes

            with ThreadPoolExecutor(4) as clients:
                asked = clients.map(one_client, range(4))
                under_way.wait(30)
                dying.kill()
                codes = [code for found in asked for code in found]
            assert set(codes) <= {"ok", "backend_broke_off"}
            assert codes.count("backend_broke_off") <= 4
            until(
                lambda: (
                    [i["state"] for i in front.get("/admin/v1/backends/pair")["instances"]] == ["down", "up"]
                ),
                "the instance's end",
            )
            assert front.states() == {"pair": "up"}
