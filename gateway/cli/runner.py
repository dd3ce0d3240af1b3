"""`ace draft-runner` and `ace embedded-backend`: hand this process over to the part that knows torch."""

from __future__ import annotations

import os
import sys

import click

_ALL_TO_THE_OTHER = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(name="draft-runner", context_settings=_ALL_TO_THE_OTHER)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def draft_runner(args: tuple[str, ...]) -> None:
    """Score finished answers for shadow; `ace draft-runner --help` lists its options."""
    _become("draft-runner", args)


@click.command(name="embedded-backend", context_settings=_ALL_TO_THE_OTHER)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def embedded_backend(args: tuple[str, ...]) -> None:
    """Serve a small real model; `ace embedded-backend --help` lists its options."""
    _become("embedded-backend", args)


def _become(part: str, args: tuple[str, ...]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "draftrunner", part, *args])  # noqa: S606 no shell wanted
