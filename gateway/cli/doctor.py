"""`ace doctor`: what is wrong, why, and what to type next. Works while the gateway is down."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import orjson

from gateway.cli.checks import PROBLEM, Diagnosis, Gathered, diagnose
from gateway.cli.client import GatewayClient, print_json, printable, with_gateway
from gateway.errors import GatewayError, PolicyError, SettingsError
from gateway.settings import Settings

_PATH = click.Path(path_type=Path)
_TIME_LIMIT_S = 15.0
_ROUTES = {
    "installation": None,
    "policy": None,
    "overlays": "overlays",
    "backends": "backends",
    "runners": "runners",
}
"""Routes for operators, and the field of the answer that is wanted; None wants all of it."""

look_here = (
    click.option(
        "--data", "data_dir", type=_PATH, metavar="DIR", help="Data folder of a gateway that is down."
    ),
    click.option(
        "--policy", "policy_path", type=_PATH, metavar="FILE", help="A policy file to check as well."
    ),
)
"""Options that say what to look at without a gateway."""


@click.command()
@look_here[0]
@look_here[1]
@click.option("--json", "as_json", is_flag=True, help="Print the diagnoses as JSON.")
@with_gateway
def doctor(client: GatewayClient, data_dir: Path | None, policy_path: Path | None, as_json: bool) -> None:
    """Look at every part, and say of each problem its cause and what to type next.

    Ends with status 1 if there is a problem; warnings alone do not count as one.
    """
    found = diagnose(gather(client, data_dir, policy_path))
    if as_json:
        print_json(as_document(found))
    else:
        for diagnosis in found:
            _show(diagnosis)
    if any(diagnosis.state == PROBLEM for diagnosis in found):
        sys.exit(1)


def as_document(found: list[Diagnosis]) -> dict[str, Any]:
    """The diagnoses as JSON values."""
    healthy = all(diagnosis.state != PROBLEM for diagnosis in found)
    return {"healthy": healthy, "diagnoses": [asdict(diagnosis) for diagnosis in found]}


def gather(client: GatewayClient, data_dir: Path | None, policy_path: Path | None) -> Gathered:
    """Everything that the checks look at: from the gateway where it answers, else from this machine."""
    gathered, settings = _from_here(data_dir, policy_path)
    try:
        ready = orjson.loads(client.page("/readyz", time_limit_s=_TIME_LIMIT_S))
        # Where operation has a port of its own, this one is not it.
        if "ready" in ready:
            metrics = client.page("/metrics", time_limit_s=_TIME_LIMIT_S)
            gathered = replace(gathered, ready=ready, metrics=metrics)
    except click.ClickException as error:
        store = asyncio.run(_store_of(settings)) if settings else None
        return replace(gathered, gateway_error=error.message, store=store)
    except orjson.JSONDecodeError:
        return replace(gathered, gateway_error="What answers there is not an ACE gateway.")
    return _with_operators_routes(client, gathered)


def _with_operators_routes(client: GatewayClient, gathered: Gathered) -> Gathered:
    answers: dict[str, Any] = {}
    try:
        for name, wanted in _ROUTES.items():
            asked_at = time.time()
            answer = client.get(f"/admin/v1/{name}")
            if name == "installation":
                answers["skew_s"] = _skew(answer["now"], asked_at, time.time())
            answers[name] = answer if wanted is None else answer[wanted]
    except click.ClickException as error:
        answers["token_error"] = error.message
    elsewhere = answers.get("installation") if gathered.ready is None else None
    if elsewhere is not None:
        answers |= {"ready": elsewhere["ready"], "metrics": elsewhere["metrics"]}
    return replace(gathered, **answers)


def _skew(theirs: float, before: float, after: float) -> float:
    """By how much their clock is off at least: it was read at some moment between the two."""
    return theirs - min(max(theirs, before), after)


def _from_here(data_dir: Path | None, policy_path: Path | None) -> tuple[Gathered, Settings | None]:
    try:
        settings = Settings.load(os.environ, data_dir=data_dir, policy_path=policy_path)
    except SettingsError as error:
        return Gathered(settings_error=str(error)), None
    path = settings.policy_path
    if path is None:
        return Gathered(), settings
    return Gathered(policy_path=str(path), policy_error=_complaint_of(path)), settings


def _complaint_of(policy: Path) -> str | None:
    from gateway.policy.load import load_policy

    try:
        load_policy(policy)
    except PolicyError as error:
        return str(error)
    return None


async def _store_of(settings: Settings) -> dict[str, Any]:
    from gateway.store.store import Store

    try:
        store = Store(settings.database_url)
    except GatewayError as error:
        return {"label": "store", "error": str(error), "revision": None, "newest": None, "bytes_free": None}
    try:
        return asdict(await store.look())
    finally:
        await store.close()


def _show(diagnosis: Diagnosis) -> None:
    lines = diagnosis.cause.splitlines() or [""]
    click.echo(printable(f"{diagnosis.state:<8} {diagnosis.part}: {lines[0]}"))
    for line in lines[1:]:
        click.echo(printable(f"{'':<8} {line}"))
    if diagnosis.next_command:
        click.echo(printable(f"{'':<8} -> {diagnosis.next_command}"))
