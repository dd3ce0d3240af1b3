"""`ace init` and `ace policy`: policies without a running gateway, and the history of one that runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gateway.cli.client import (
    GatewayClient,
    cell,
    json_option,
    operator,
    print_json,
    print_table,
    with_gateway,
)
from gateway.errors import GatewayError
from gateway.fleet.model import Backend
from gateway.policy.decide import decide
from gateway.policy.diff import policy_diff
from gateway.policy.explain import as_json, facts_from
from gateway.policy.load import LoadedPolicy, load_policy
from gateway.policy.model import Facts, Match, Mode, Rule
from gateway.policy.ways import WAYS
from probes.model import Finding, Support

_FILE = click.Path(path_type=Path)
_ROUTE = "/admin/v1/policy"
_HISTORY = f"{_ROUTE}/history"
_NEEDED = tuple(dict.fromkeys(need for way in WAYS for need in way.needs))


@click.group()
def policy() -> None:
    """Check and try policy files; show, compare and edit the policy of a gateway."""


@policy.command()
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Say what FILE's rules do, or everything that is wrong with it (exit status 1)."""
    loaded = _load(file)
    count = len(loaded.policy.rules)
    click.echo(f"{file}: valid, {count} {'rule' if count == 1 else 'rules'}, revision {loaded.revision}")
    for number, rule in enumerate(loaded.policy.rules, start=1):
        click.echo(f"{number:>4}. {rule.name}: {_conditions(rule.match)} -> {_consequence(rule)}")
    click.echo(f"      no rule matches -> {_consequence(loaded.policy.fallback)}")


@policy.command()
@click.argument("file", type=_FILE)
@click.option("--facts", required=True, help='A JSON object, such as \'{"model": "m", "workload": "rag"}\'.')
@click.option(
    "--backend-supports",
    multiple=True,
    type=click.Choice([capability.value for capability in _NEEDED]),
    help="A capability that the backend has; may be given several times.",
)
@click.option("--json", "as_json_", is_flag=True, help="Print the decision as JSON.")
def explain(file: Path, facts: str, backend_supports: tuple[str, ...], as_json_: bool) -> None:
    """Say which rule of FILE decides about a request, why each earlier one does not, and what happens.

    Draws (sample, share) depend on the fact request_id; control blocks on the time of asking.
    """
    loaded = _load(file)
    backend = _backend(frozenset(backend_supports))
    explained = as_json(decide(loaded.policy, _facts(facts), backend, at=time.time()))
    if as_json_:
        click.echo(json.dumps(explained, indent=2))
        return
    for line in explained["trail"]:
        click.echo(f"- {line}")
    for name, value in explained["decision"].items():
        click.echo(f"{name.replace('_', ' ')}: {_in_words(value)}")


@policy.command()
@click.argument("revision", required=False)
@json_option
@with_gateway
def show(client: GatewayClient, revision: str | None, as_json: bool) -> None:
    """Print the text of the policy in force, or of REVISION, exactly as it was written."""
    shown = client.get(f"{_HISTORY}/{_quoted(revision)}" if revision else _ROUTE)
    if as_json:
        print_json(shown)
        return
    click.echo(f"revision {shown['revision']}, number {cell(shown['number'])}", err=True)
    if shown.get("error"):
        click.echo(shown["error"], err=True)
    if shown["text"] is None:
        raise click.ClickException("The gateway runs without a policy, so everything is off.")
    click.echo(shown["text"], nl=False)


@policy.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@json_option
@with_gateway
def history(client: GatewayClient, limit: int, as_json: bool) -> None:
    """List the policies that have been in force, newest first."""
    answer = client.get(_HISTORY, limit=limit)
    if as_json:
        print_json(answer)
        return
    print_table(
        ("number", "revision", "since", "by", "source", "reason"),
        (
            (
                one["number"],
                one["revision"],
                _time(one["created_at"]),
                one["author"],
                one["source"],
                one["reason"],
            )
            for one in answer["revisions"]
        ),
    )


@policy.command()
@click.argument("before", metavar="[FROM]", required=False)
@click.argument("after", metavar="[TO]", required=False)
@click.option("--file", type=_FILE, help="Compare the policy in force with this file instead.")
@json_option
@with_gateway
def diff(
    client: GatewayClient, before: str | None, after: str | None, file: Path | None, as_json: bool
) -> None:
    """Show how two policies that have been in force differ; unless others are named, the last two."""
    if file is not None:
        if before or after:
            raise click.UsageError("Give revisions or --file, not both.")
        in_force, loaded = client.get(_ROUTE), _load(file)
        names = f"in force {in_force['revision']}", f"{file} {loaded.revision}"
        answer = {"diff": policy_diff(in_force["text"] or "", loaded.text or "", names)}
    else:
        answer = client.get(f"{_ROUTE}/diff", before=before, after=after)
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["diff"] or "They are equal.\n", nl=False)


@policy.command()
@click.argument("file", type=_FILE)
@click.option(
    "--based-on", required=True, help="The revision that FILE was made from; `ace policy show` says it."
)
@click.option("--reason", required=True, help="Why; it is shown in the history.")
@json_option
@with_gateway
def put(client: GatewayClient, file: Path, based_on: str, reason: str, as_json: bool) -> None:
    """Put FILE in force, where the gateway keeps its policy in the store."""
    loaded = _load(file)
    given = {"text": loaded.text, "based_on": based_on, "reason": reason, "author": operator()}
    _told(client.put(_ROUTE, given), as_json=as_json)


@policy.command()
@click.argument("revision")
@click.option("--reason", required=True, help="Why; it is shown in the history.")
@json_option
@with_gateway
def rollback(client: GatewayClient, revision: str, reason: str, as_json: bool) -> None:
    """Put an earlier policy in force again, where the gateway keeps its policy in the store."""
    given = {"revision": revision, "reason": reason, "author": operator()}
    _told(client.post(f"{_ROUTE}/rollback", given), as_json=as_json)


def _told(kept: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(kept)
    else:
        click.echo(f"Policy {kept['revision']} is in force, number {kept['number']}.")


@click.command()
@click.option("--force", is_flag=True, help="Write over a file that exists.")
@click.argument("path", type=_FILE, default="policy.yaml")
def init(path: Path, force: bool) -> None:
    """Write a first policy to PATH: n-gram drafting in shadow on RAG and summarising, all else off."""
    text = resources.files("policies").joinpath("first.yaml").read_text(encoding="utf-8")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.ClickException(f"{path} exists. Give another name, or --force to replace it.") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}.") from None
    click.echo(f"Wrote {path}. Try: ace policy check {path}; then: ace serve --policy {path}")


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _load(file: Path) -> LoadedPolicy:
    try:
        return load_policy(file)
    except GatewayError as error:
        click.echo(str(error), err=True)
        raise SystemExit(1) from None


def _facts(text: str) -> Facts:
    try:
        return facts_from(json.loads(text))
    except json.JSONDecodeError as error:
        raise click.UsageError(f"--facts is not JSON: {error}.") from None
    except GatewayError as error:
        raise click.UsageError(str(error)) from None


def _backend(supported: frozenset[str]) -> Backend:
    findings = {
        capability: Finding(
            capability=capability,
            support=Support.YES if capability in supported else Support.NO,
            evidence="said on the command line",
        )
        for capability in _NEEDED
    }
    return Backend(name="the backend", url="", findings=findings)


def _conditions(match: Match) -> str:
    said = match.model_dump(mode="json", exclude_none=True)
    words = (
        f"{name.replace('_', ' ')} {' or '.join(value) if isinstance(value, list) else value}"
        for name, value in said.items()
    )
    return ", ".join(words) or "every request"


def _consequence(rule: Rule) -> str:
    speculation = f"{rule.draft}, up to {rule.k} draft tokens"
    match rule.mode:
        case Mode.OFF:
            return "off"
        case Mode.SHADOW:
            return f"shadow ({speculation}, {rule.shadow.sample:.0%} measured)"
        case Mode.PROD:
            control = rule.prod.control.fraction
            return f"prod ({speculation}, {rule.prod.share:.0%} of requests, {control:.0%} as control)"


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(inner)}" for name, inner in value.items())
    return "-" if value is None else str(value)
