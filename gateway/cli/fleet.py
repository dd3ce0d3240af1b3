"""`ace fleet check|diff`: fleet files, before they are put in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gateway.cli.client import GatewayClient, cell, json_option, print_json, printable, with_gateway
from gateway.errors import GatewayError
from gateway.fleet.file import LoadedFleet, load_fleet
from gateway.fleet.model import Declaration

_FILE = click.Path(path_type=Path)
WOULD_CHANGE = 2
"""Exit status of `ace fleet diff` when something would change."""


@click.group()
def fleet() -> None:
    """Check and try fleet files."""


@fleet.command()
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Say what FILE declares, or everything that is wrong with it (exit status 1)."""
    loaded = _load(file)
    count = len(loaded.declarations)
    backends = "backend" if count == 1 else "backends"
    click.echo(f"{file}: valid, {count} {backends}, revision {loaded.revision}")
    for declaration in loaded.declarations:
        click.echo(f"  {declaration.name}: {_instances(declaration)}, kind {declaration.kind}")


@fleet.command()
@click.argument("file", type=_FILE)
@json_option
@with_gateway
def diff(client: GatewayClient, file: Path, as_json: bool) -> None:
    """Say what FILE would change at a running gateway; exit status 2 when that is something.

    Nothing is changed. Backends that were registered by hand stay as they are.
    """
    loaded = _load(file)
    body = {"version": 1, "backends": [_as_body(declaration) for declaration in loaded.declarations]}
    answer = client.post("/admin/v1/fleet/diff", body)
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if any(answer.values()):
        raise SystemExit(WOULD_CHANGE)


def _load(file: Path) -> LoadedFleet:
    try:
        return load_fleet(file)
    except GatewayError as error:
        click.echo(str(error), err=True)
        raise SystemExit(1) from None


def _instances(declaration: Declaration) -> str:
    urls = ", ".join(declaration.urls)
    return f"every address of {urls}" if declaration.discovery == "dns" else urls


def _as_body(declaration: Declaration) -> dict[str, Any]:
    return {
        "name": declaration.name,
        "urls": declaration.urls,
        "discovery": declaration.discovery,
        "kind": declaration.kind,
        "credential": declaration.credential,
        "tokenizer": declaration.tokenizer,
    }


def _show(answer: dict[str, Any]) -> None:
    if not any(answer.values()):
        click.echo("Nothing would change.")
    lines = [f"+ {name}" for name in answer["added"]]
    for change in answer["changed"]:
        fields = (f"{field}: {cell(old)} -> {cell(new)}" for field, (old, new) in change["fields"].items())
        lines.append(f"~ {change['name']}  {'; '.join(fields)}")
    lines += [f"- {name}" for name in answer["removed"]]
    lines += [f"! {sentence}" for sentence in answer["refused"]]
    for line in lines:
        click.echo(printable(line))
