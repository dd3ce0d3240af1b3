"""`ace demo`: measures speculation on this machine, or keeps the same stack running."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console

_ENDED_BY_SIGTERM = 143


@click.command()
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report there too.",
)
@click.option(
    "--quick", is_flag=True, help="Fewer and shorter answers: under 90 s instead of under 8 minutes."
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Number format of the model; float32 is slower, and no answer may differ.",
)
@click.option("--serve", is_flag=True, help="Measure nothing; keep the stack running and print its URLs.")
def demo(*, json_path: Path | None, quick: bool, dtype: str, serve: bool) -> None:
    """Measure speculation on this machine with a small real model, end to end."""
    if serve and (quick or json_path):
        raise click.UsageError("--serve measures nothing, so --quick and --json have no meaning with it.")
    # Without this, SIGTERM would leave the started processes behind.
    signal.signal(signal.SIGTERM, _leave)
    console = Console()
    if serve:
        _serve(dtype, console)
    _measure(json_path=json_path, quick=quick, dtype=dtype, console=console)


def _serve(dtype: str, console: Console) -> NoReturn:
    from gateway.demo.serve import serve_stack

    serve_stack(dtype=dtype, console=console)


def _measure(*, json_path: Path | None, quick: bool, dtype: str, console: Console) -> None:
    from gateway.demo.pace import FULL, QUICK
    from gateway.demo.render import show_report
    from gateway.demo.run import run_demo

    if json_path is not None:
        _refuse_unwritable(json_path)
    report = run_demo(pace=QUICK if quick else FULL, dtype=dtype, console=console)
    show_report(console, report)
    if json_path is not None:
        json_path.write_text(json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        console.print(f"Written to {json_path}.", markup=False)


def _refuse_unwritable(path: Path) -> None:
    """Minutes of measuring must not end in a message that the report cannot be kept."""
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise click.UsageError(f"--json {path} cannot be written: {error.strerror}.") from error


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(_ENDED_BY_SIGTERM)
