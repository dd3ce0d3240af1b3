"""`ace support-bundle`: what a supporter needs, in one file that can be read before it is sent."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gateway.cli.checks import Gathered, diagnose
from gateway.cli.client import GatewayClient, with_gateway
from gateway.cli.doctor import as_document, gather, look_here

_STAGES = 500
_HIDDEN = "[removed]"
_SECRET_VARIABLES = ("ACE_TOKEN", "ACE_ADMIN_TOKEN", "ACE_RUNNER_TOKEN", "ACE_STORE_URL")

CONTENTS = {
    "doctor.json": "what `ace doctor` says",
    "machine.json": "this machine: system, processors, memory, Python and every package's version",
    "installation.json": "the gateway's own versions, and its settings, of secrets only whether they are set",
    "policy.json": "the policy in force, with its text",
    "policy_history.json": "which policies have been in force, when, by whom and why",
    "overlays.json": "kills, demotions and shorter drafts in force",
    "backends.json": "backends with their findings; of a credential only whether there is one",
    "runners.json": "draft runners",
    "stages.json": f"the newest {_STAGES} stage records: numbers and names, no text",
    "metrics.txt": "the page for Prometheus",
    "log.txt": "the newest lines for people of the worker that answered",
}
"""Every file that a bundle may hold, in words."""


@click.command(name="support-bundle")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False), required=False)
@look_here[0]
@look_here[1]
@with_gateway
def support_bundle(
    client: GatewayClient, out: Path | None, data_dir: Path | None, policy_path: Path | None
) -> None:
    """Write what a supporter needs to OUT (ace-support-TIME.tar.gz), and say what is in it.

    No prompt, answer, key, token or credential is in it. Works while the gateway is down, with less.
    """
    target = out or Path(f"ace-support-{datetime.now(UTC):%Y%m%dT%H%M%S}.tar.gz")
    files = contents(client, gather(client, data_dir, policy_path))
    click.echo(f"{target} will hold:")
    for name, text in files.items():
        click.echo(f"  {name:<18} {len(text.encode()):>9,} bytes  {CONTENTS[name]}")
    for name in CONTENTS.keys() - files.keys():
        click.echo(f"  {name:<18} {'-':>9}        not to be had: the gateway did not answer")
    _write(target, files)
    click.echo(f"Written. Look at it with: tar xzf {target} --to-stdout | less")


def contents(client: GatewayClient, gathered: Gathered) -> dict[str, str]:
    """The files by name; what could not be had is left out."""
    answers = {
        "doctor.json": as_document(diagnose(gathered)),
        "machine.json": _machine(),
        "installation.json": _installation(gathered),
        "policy.json": gathered.policy,
        "policy_history.json": _asked(client, gathered, "/admin/v1/policy/history", "revisions"),
        "overlays.json": gathered.overlays,
        "backends.json": None if gathered.backends is None else [_backend(b) for b in gathered.backends],
        "runners.json": gathered.runners,
        "stages.json": _asked(client, gathered, "/admin/v1/stages", "stages", limit=_STAGES),
    }
    files = {
        name: json.dumps(answer, indent=1, ensure_ascii=False)
        for name, answer in answers.items()
        if answer is not None
    }
    if gathered.metrics is not None:
        files["metrics.txt"] = gathered.metrics
    if gathered.installation is not None:
        files["log.txt"] = "\n".join(gathered.installation["recent_lines"])
    return {name: _without_secrets(text) for name, text in files.items()}


def _installation(gathered: Gathered) -> dict[str, Any] | None:
    if gathered.installation is None:
        return None
    return {name: value for name, value in gathered.installation.items() if name != "recent_lines"}


def _backend(backend: Mapping[str, Any]) -> dict[str, Any]:
    return {**backend, "credential": "set" if backend["credential"] else None}


def _asked(client: GatewayClient, gathered: Gathered, path: str, wanted: str, **query: object) -> Any:
    """What a further route for operators answers; None where such routes cannot be had."""
    if gathered.runners is None:
        return None
    try:
        return client.get(path, **query)[wanted]
    except click.ClickException as error:
        return {"error": error.message}


def _machine() -> dict[str, Any]:
    from gateway.control.installation import here

    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {**here(), "processors": os.cpu_count(), "memory_bytes": pages}


def _without_secrets(text: str) -> str:
    """A second lock: nothing above puts a secret in, and one of this shell's would be taken out here."""
    for name in _SECRET_VARIABLES:
        if secret := os.environ.get(name):
            text = text.replace(secret, _HIDDEN)
    return text


def _write(target: Path, files: Mapping[str, str]) -> None:
    try:
        with tarfile.open(target, "x:gz") as archive:
            for name, text in files.items():
                content = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"ace-support/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(content))
    except OSError as error:
        reason = "it exists already" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise click.ClickException(f"{target} cannot be written: {reason}. Name another file.") from None
