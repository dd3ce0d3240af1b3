from __future__ import annotations

import socket
from urllib.parse import urlsplit

import httpx

from tests.fakes.mortal_runner import MortalRunner
from tests.fakes.processes import RUNNER_TOKEN


def drafters_at(url: str) -> set[str]:
    with httpx.Client(trust_env=False, timeout=60) as client:
        reply = client.get(f"{url}/v1/info", headers={"authorization": f"Bearer {RUNNER_TOKEN}"})
    return set(reply.raise_for_status().json()["drafters"])


def test_whoever_serves_can_draft_as_announced() -> None:
    with MortalRunner() as runner:
        for _ in range(3):
            assert set(runner.drafters) <= drafters_at(runner.url)
            runner.kill()


def test_a_kill_ends_the_connections() -> None:
    with MortalRunner() as runner:
        address = urlsplit(runner.url)
        with socket.create_connection((address.hostname, address.port or 0), timeout=60) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(65536)
            runner.kill()
            assert connection.recv(65536) == b""
