"""The demo's stack kept running, to play with."""

from __future__ import annotations

import shutil
import time
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from rich.console import Console

from gateway.cli.client import DEFAULT_URL, GatewayClient
from gateway.demo.setup import refuse_missing, register_backend, runner_joined, started_stack
from gateway.demo.stack import Stack, usual_ports

POLICY = "playground.yaml"
_LOOK_EVERY_S = 1.0


def serve_stack(*, dtype: str, console: Console) -> NoReturn:
    """Start everything, print how to use it, and keep it running until interrupted.

    Raises:
        DemoFailed: Something is not installed, or a part did not start or ended.
        KeyboardInterrupt: Everything has been ended.
    """
    refuse_missing()
    with TemporaryDirectory(prefix="ace-serve-") as folder:
        policy = Path(folder) / "policy.yaml"
        with as_file(files("policies") / POLICY) as shipped:
            shutil.copyfile(shipped, policy)
        with started_stack(
            console, folder=Path(folder), policy=policy, dtype=dtype, ports=usual_ports()
        ) as stack:
            with GatewayClient(stack.urls.gateway, stack.admin_token) as rest:
                model = register_backend(rest, stack.urls.backend)["models"][0]
                runner_joined(rest)
            console.print(how_to_use(stack, policy=policy, model=model), markup=False, soft_wrap=True)
            while True:
                for process in stack.processes:
                    process.refuse_ended()
                time.sleep(_LOOK_EVERY_S)


def how_to_use(stack: Stack, *, policy: Path, model: str) -> str:
    """URLs, the lines that make `ace` commands work, and a request that speculates."""
    urls = stack.urls
    exports = [f"export ACE_TOKEN={stack.admin_token}"]
    if urls.gateway != DEFAULT_URL:
        exports.append(f"export ACE_GATEWAY_URL={urls.gateway}")
    shown_exports = "\n  ".join(exports)
    return f"""
OpenAI API        {urls.gateway}/v1
REST API          {urls.gateway}/docs
metrics           {urls.gateway}/metrics
embedded backend  {urls.backend}/v1
draft runner      {urls.runner}
policy            {policy} (edit it: it is read again at once)

In another terminal, ask for a code edit (prod: it is speculated):

  curl {urls.gateway}/v1/chat/completions -H 'content-type: application/json' -H 'x-ace-workload: code' \\
    -d '{{"model": "{model}", "temperature": 0, "max_tokens": 64, "messages": [{{"role": "user", "content": \
"Rename x to total in this code. Return the whole code. def add(x, y): x = x + y; print(x); return x"}}]}}'

and see what it left behind:

  {shown_exports}
  ace stages

Ctrl-C ends everything.
"""
