"""`ace demo`: measures speculation on this machine, or keeps the same stack running."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click
from rich.console import Console

if TYPE_CHECKING:
    from gateway.demo.report import Report

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
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it there as one page with plots, which needs nothing else to be looked at.",
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
def demo(*, json_path: Path | None, html_path: Path | None, quick: bool, dtype: str, serve: bool) -> None:
    """Measure speculation on this machine with a small real model, end to end."""
    if serve and (quick or json_path or html_path):
        raise click.UsageError("--serve measures nothing: leave out --quick, --json and --html.")
    # Without this, SIGTERM would leave the started processes behind.
    signal.signal(signal.SIGTERM, _leave)
    console = Console()
    if serve:
        _serve(dtype, console)
    _refuse_unwritable(**{"--json": json_path, "--html": html_path})
    if html_path is not None:
        from gateway.demo.setup import refuse_missing

        refuse_missing("matplotlib", "jinja2")
    report = _measure(quick=quick, dtype=dtype, console=console)
    if json_path is not None:
        _keep(json_path, json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n", console)
    if html_path is not None:
        from gateway.demo.page import page_of

        _keep(html_path, page_of(report, command=_command(quick=quick, dtype=dtype)), console)


def _serve(dtype: str, console: Console) -> NoReturn:
    from gateway.demo.serve import serve_stack

    serve_stack(dtype=dtype, console=console)


def _measure(*, quick: bool, dtype: str, console: Console) -> Report:
    from gateway.demo.pace import FULL, QUICK
    from gateway.demo.render import show_report
    from gateway.demo.run import run_demo

    report = run_demo(pace=QUICK if quick else FULL, dtype=dtype, console=console)
    show_report(console, report)
    return report


def _command(*, quick: bool, dtype: str) -> str:
    """What makes such a page again."""
    return f"ace demo{' --quick' if quick else ''} --dtype {dtype} --html FILE"


def _keep(path: Path, text: str, console: Console) -> None:
    path.write_text(text, encoding="utf-8")
    console.print(f"Written to {path}.", markup=False)


def _refuse_unwritable(**paths: Path | None) -> None:
    """Minutes of measuring must not end in a message that the report cannot be kept."""
    for option, path in paths.items():
        if path is None:
            continue
        existed = path.exists()
        try:
            path.open("a").close()
            if not existed:
                path.unlink()
        except OSError as error:
            raise click.UsageError(f"{option} {path} cannot be written: {error.strerror}.") from error


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(_ENDED_BY_SIGTERM)
