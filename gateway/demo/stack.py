"""The three parts of a demo as processes of their own, on loopback: started, waited for, and ended."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path

import httpx
from click import ClickException

from gateway.demo.failure import DemoFailed

HOST = "127.0.0.1"
_POLL_S = 0.2
_END_S = 10.0
_LOG_LINES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process to start.

    Attributes:
        arguments: What follows `python -m`.
        environment: Set for this process over what it inherits.
        ready_url: Answers 200 as soon as the part can be used.
        time_limit_s: How long that may take.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    ready_url: str
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the parts listen."""

    gateway: int
    backend: int
    runner: int


@dataclass(frozen=True, slots=True)
class Urls:
    """The parts' base URLs."""

    gateway: str
    backend: str
    runner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running gateway, embedded backend and draft runner."""

    urls: Urls
    admin_token: str = field(repr=False)
    processes: tuple[PartProcess, ...]


@contextmanager
def open_stack(
    *, folder: Path, policy: Path, dtype: str, ports: Ports, say: Callable[[str], None]
) -> Iterator[Stack]:
    """Start the three parts, wait until each can be used, and end them when the block is left.

    Args:
        folder: Takes the gateway's data and a log file for each part.
        policy: The gateway's policy file.
        dtype: The embedded backend's number format.
        ports: Where the parts listen.
        say: Shown to the person waiting.

    Raises:
        DemoFailed: A part did not become ready, or the block failed and a part had ended; the message
            then ends with that part's log.
    """
    urls = Urls(*(f"http://{HOST}:{port}" for port in astuple(ports)))
    admin_token = f"ace-admin-{secrets.token_urlsafe(24)}"
    with ExitStack() as ending:
        processes = tuple(
            ending.enter_context(_started(part, folder))
            for part in _parts(
                urls, admin_token=admin_token, folder=folder, policy=policy, dtype=dtype, ports=ports
            )
        )
        for process in processes:
            say(f"waiting for the {process.part.name}")
            process.wait_until_ready(time.monotonic, time.sleep)
        try:
            yield Stack(urls=urls, admin_token=admin_token, processes=processes)
        except (DemoFailed, ClickException):
            for process in processes:
                process.refuse_ended()
            raise


def free_ports() -> Ports:
    """Three ports that nobody listens on."""
    return Ports(_free_port(), _free_port(), _free_port())


def usual_ports() -> Ports:
    """The ports that the commands use by default, each replaced by a free one if it is taken."""
    return Ports(_free_port(8080), _free_port(8100), _free_port(8090))


def _free_port(wanted: int = 0) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError:
            return _free_port()
        port: int = probe.getsockname()[1]
        return port


def _parts(
    urls: Urls, *, admin_token: str, folder: Path, policy: Path, dtype: str, ports: Ports
) -> tuple[Part, ...]:
    tokens = {"ACE_RUNNER_TOKEN": secrets.token_urlsafe(24)}
    listen = ("--host", HOST, "--port")
    draft_model = ("--draft-model", "demo")
    return (
        Part(
            name="embedded backend",
            arguments=(
                *("draftrunner", "embedded-backend", *listen, str(ports.backend)),
                *("--dtype", dtype, *draft_model),
            ),
            ready_url=f"{urls.backend}/health",
            time_limit_s=300,
        ),
        Part(
            name="gateway",
            arguments=(
                *("gateway", "serve", *listen, str(ports.gateway)),
                *("--data", str(folder / "data"), "--policy", str(policy)),
            ),
            environment={"ACE_ADMIN_TOKEN": admin_token, **tokens},
            ready_url=f"{urls.gateway}/readyz",
            time_limit_s=60,
        ),
        Part(
            name="draft runner",
            arguments=(
                *("draftrunner", "draft-runner", *listen, str(ports.runner)),
                *("--gateway", urls.gateway, *draft_model),
            ),
            environment=tokens,
            ready_url=f"{urls.runner}/healthz",
            time_limit_s=120,
        ),
    )


@contextmanager
def _started(part: Part, folder: Path) -> Iterator[PartProcess]:
    process = PartProcess(part, folder / f"{part.name.replace(' ', '-')}.log")
    try:
        yield process
    finally:
        process.end()


class PartProcess:
    """A part's process, from its start on. Its output goes to `log`."""

    def __init__(self, part: Part, log: Path) -> None:
        self.part = part
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 our own interpreter and arguments
                [sys.executable, "-m", *part.arguments],
                env=_inherited() | dict(part.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_until_ready(self, clock: Callable[[], float], pause: Callable[[float], None]) -> None:
        """Return once `ready_url` answers 200.

        Raises:
            DemoFailed: The process ended first, or the time limit passed.
        """
        give_up_at = clock() + self.part.time_limit_s
        while not _answers(self.part.ready_url):
            self.refuse_ended()
            if clock() > give_up_at:
                raise DemoFailed(
                    f"The {self.part.name} was not ready after {self.part.time_limit_s:g} s "
                    f"({self.part.ready_url}).{self._last_words()}"
                )
            pause(_POLL_S)

    def refuse_ended(self) -> None:
        """Raise DemoFailed, with the end of the log, if the process has ended."""
        if (status := self._process.poll()) is not None:
            raise DemoFailed(f"The {self.part.name} ended with status {status}.{self._last_words()}")

    def end(self) -> None:
        """End the process, by force if it does not go by itself. One that has ended is left alone."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return (
            f" The end of its log:\n{chr(10).join(lines[-_LOG_LINES:])}" if lines else " It logged nothing."
        )


def _inherited() -> dict[str, str]:
    """Our environment without settings of other ACE programs, which would steer or stop the parts."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ACE_")}


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
