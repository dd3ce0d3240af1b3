"""A draft runner that may be killed and is back at once, on its port: forked from a process that is ready.

`python -m tests.fakes.mortal_runner` prints its port, and then the pid of each runner that it has started.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Self

import uvicorn

from draftrunner.drafters import make_drafters
from draftrunner.service import create_app
from tests.fakes.processes import RUNNER_TOKEN


class MortalRunner:
    """The real service, in a process to be killed; use as a context manager."""

    drafters = ("ngram",)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.fakes.mortal_runner"]
        self._nursery = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self._next_number()}"
        self._pid = self._next_number()
        return self

    def __exit__(self, *_: object) -> None:
        with self._nursery:
            self._nursery.kill()
            os.kill(self._pid, signal.SIGKILL)

    def kill(self) -> None:
        """kill -9, and wait for the next one's start."""
        os.kill(self._pid, signal.SIGKILL)
        self._pid = self._next_number()

    def _next_number(self) -> int:
        assert self._nursery.stdout is not None
        return int(self._nursery.stdout.readline())


def _start_again_and_again() -> None:
    app = create_app(token=RUNNER_TOKEN, version="test", drafters=make_drafters())
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        _say(listener.getsockname()[1])
        while True:
            pid = os.fork()
            if pid == 0:
                config = uvicorn.Config(app, log_config=None, ws="wsproto", ws_ping_interval=None)
                uvicorn.Server(config).run(sockets=[listener])
                os._exit(0)
            _say(pid)
            os.waitpid(pid, 0)


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _start_again_and_again()
