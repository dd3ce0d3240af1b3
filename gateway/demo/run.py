"""The demo from its first process to its report."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from rich.console import Console

from gateway.demo.machine import describe_machine
from gateway.demo.pace import Pace
from gateway.demo.prompts import load_prompts
from gateway.demo.report import Report
from gateway.demo.results import Evidence, make_report
from gateway.demo.session import open_session
from gateway.demo.setup import refuse_missing, started_stack
from gateway.demo.stack import free_ports

POLICY = "demo.yaml"
DRAFTER = "ngram"
K = 5
"""What the policy asks for in prod."""


def run_demo(*, pace: Pace, dtype: str, console: Console) -> Report:
    """Start everything, measure, and end everything.

    Args:
        pace: How much to ask.
        dtype: Number format of the embedded backend.
        console: Shows what is going on; showing the report is left to the caller.

    Raises:
        DemoFailed: Something is not installed, a part did not start, or a request was not answered.
    """
    refuse_missing("openai")
    started = time.monotonic()
    with (
        TemporaryDirectory(prefix="ace-demo-") as folder,
        as_file(files("policies") / POLICY) as policy,
        started_stack(console, folder=Path(folder), policy=policy, dtype=dtype, ports=free_ports()) as stack,
        open_session(stack, console) as session,
    ):
        evidence = session.gather(
            load_prompts(pace.prompts), pace=pace, drafter=DRAFTER, k=K, exact=dtype == "float32"
        )
    machine = _machine(evidence, dtype=dtype, seconds=time.monotonic() - started)
    # Seeded, so that the same answers give the same intervals.
    return make_report(evidence, machine, Random(0))  # noqa: S311 resampling, not cryptography


def _machine(evidence: Evidence, *, dtype: str, seconds: float) -> dict[str, object]:
    return describe_machine() | {
        "dtype": dtype,
        "k": K,
        "max_tokens": evidence.max_tokens,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds),
        "pass_seconds": {
            drafter: {str(width): seconds for width, seconds in costs.pass_seconds.items()}
            for drafter, costs in evidence.costs["in_engine"].items()
        },
    }
