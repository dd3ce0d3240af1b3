"""The three parts as an operator starts them: real processes on loopback, with their logs kept."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

ADMIN_TOKEN = "ace-admin-token-of-the-tests"
RUNNER_TOKEN = "ace-runner-token-of-the-tests"
PATIENCE_S = 120.0

Found = TypeVar("Found")


def until(found: Callable[[], Found | None], what: str, patience_s: float = PATIENCE_S) -> Found:
    """What `found` returns as soon as it is neither None nor false; fails after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not seen within {patience_s:g} s: {what}")


@dataclass
class Part(AbstractContextManager["Part"]):
    """One process, ended by its own pid when left.

    Attributes:
        module: Run as `python -m MODULE`.
        log: Where its output goes.
        python: The interpreter, where it is not this one.
        port: 0 lets the process choose one.
        patience_s: How long it may take to start.
    """

    module: str
    arguments: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    port: int = 0
    patience_s: float = PATIENCE_S
    process: subprocess.Popen[bytes] = field(init=False)
    url: str = field(init=False)

    def __enter__(self) -> Self:
        self._start(self.port)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def start_again(self) -> None:
        """Start on the port it had."""
        self._start(int(self.url.rpartition(":")[2]))

    def _start(self, port: int) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ACE_")}
        said = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", self.module, *self.arguments, "--port", str(port)],
                env=clean | dict(self.env),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        name = f"{self.module} {self.arguments[0]}"
        self.url = until(lambda: self._announced(said), f"the address of {name}", self.patience_s)
        until(self._answers, f"an answer of {name} at {self.url}", self.patience_s)

    def _announced(self, since: int) -> str | None:
        text = self.log.read_bytes()[since:].decode(errors="replace")
        assert self.process.poll() is None, f"{self.module} {self.arguments} has ended:\n{text}"
        announced = re.search(r"(http://127\.0\.0\.1:\d+)", text)
        return announced.group(1) if announced else None

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/metrics", trust_env=False).status_code < 500
        except httpx.TransportError:
            return False


class Front(AbstractContextManager["Front"]):
    """Gateway and draft runner, and an operator's client of the gateway.

    Args:
        folder: Where its data and logs go.
        policy: The policy file's text.
        env: Further environment of the gateway.
    """

    def __init__(self, folder: Path, *, policy: str, env: Mapping[str, str] | None = None) -> None:
        (folder / "policy.yaml").write_text(policy)
        self.gateway = Part(
            "gateway",
            ("serve", "--data", str(folder / "data"), "--policy", str(folder / "policy.yaml")),
            folder / "gateway.log",
            {"ACE_ADMIN_TOKEN": ADMIN_TOKEN, "ACE_RUNNER_TOKEN": RUNNER_TOKEN, **(env or {})},
        )
        self.folder = folder

    def __enter__(self) -> Self:
        self.gateway.__enter__()
        self.runner = Part(
            "draftrunner",
            ("draft-runner", "--gateway", self.gateway.url),
            self.folder / "runner.log",
            {"ACE_RUNNER_TOKEN": RUNNER_TOKEN},
        )
        self.runner.__enter__()
        self.admin = httpx.Client(
            base_url=f"{self.gateway.url}/admin/v1",
            headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=PATIENCE_S,
            trust_env=False,
        )
        until(lambda: self.admin.get("/runners").json()["runners"], "the runner's join")
        return self

    def __exit__(self, *error: object) -> None:
        self.admin.close()
        self.runner.__exit__(*error)
        self.gateway.__exit__(*error)

    def register(self, name: str, url: str, **more: str) -> dict[str, Any]:
        """Register a backend, and return what is shown of it."""
        answer = self.admin.post("/backends", json={"name": name, "url": url, **more})
        return dict(answer.raise_for_status().json())

    def key(self, tenant: str) -> str:
        """A new API key of a tenant."""
        made = self.admin.post("/keys", json={"name": f"key-of-{tenant}", "tenant": tenant})
        return str(made.raise_for_status().json()["key"])

    def stage_of(self, request_id: str) -> dict[str, object]:
        """The stage record of a request, once it is in the store."""
        stages = until(
            lambda: self.admin.get("/stages", params={"request_id": request_id}).json()["stages"],
            f"the stage of {request_id}",
        )
        assert len(stages) == 1
        return dict(stages[0])


class Stack(Front):
    """All three parts, the embedded backend registered as `embedded`."""

    def __init__(
        self,
        folder: Path,
        *,
        model: str,
        policy: str,
        dtype: str = "float32",
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, policy=policy, env=env)
        self.backend = Part(
            "draftrunner",
            ("embedded-backend", "--model", model, "--dtype", dtype),
            folder / "backend.log",
        )

    def __enter__(self) -> Self:
        super().__enter__()
        self.backend.__enter__()
        self.registered = self.register("embedded", self.backend.url)
        self.model: str = self.registered["models"][0]
        return self

    def __exit__(self, *error: object) -> None:
        self.backend.__exit__(*error)
        super().__exit__(*error)
