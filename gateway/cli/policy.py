"""`ace policy check|explain` and `ace init`: policies without a running gateway."""

from __future__ import annotations

import json
import time
from importlib import resources
from pathlib import Path

import click

from gateway.errors import GatewayError
from gateway.fleet.model import Backend
from gateway.policy.decide import decide
from gateway.policy.explain import as_json, facts_from
from gateway.policy.load import LoadedPolicy, load_policy
from gateway.policy.model import Facts, Match, Mode, Rule
from gateway.policy.ways import WAYS
from probes.model import Finding, Support

_FILE = click.Path(path_type=Path)
_NEEDED = tuple(dict.fromkeys(need for way in WAYS for need in way.needs))


@click.group()
def policy() -> None:
    """Check and try policy files."""


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
        click.echo(f"{name.replace('_', ' ')}: {'-' if value is None else value}")


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
