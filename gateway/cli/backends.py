"""`ace backends`: register, look at, probe, calibrate and remove model servers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click

from gateway.cli.client import (
    CALIBRATION_LIMIT_S,
    GatewayClient,
    json_option,
    print_json,
    print_table,
    printable,
    with_gateway,
)

_ROUTE = "/admin/v1/backends"
KINDS = ("auto", "vllm", "sglang", "openai", "embedded")


@click.group()
def backends() -> None:
    """Register, show, probe, calibrate and remove model servers."""


@backends.command()
@click.argument("name")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--dns", is_flag=True, help="Every address that the URL's name resolves to is an instance.")
@click.option("--kind", type=click.Choice(KINDS), default="auto", show_default=True, help="Its software.")
@click.option(
    "--credential",
    metavar="REF",
    help="Where the gateway finds the server's own key: env:NAME or file:PATH.",
)
@click.option(
    "--tokenizer",
    metavar="PATH",
    help="For a server without /tokenize: its model's folder or tokenizer.json, where the gateway runs.",
)
@json_option
@with_gateway
def add(
    client: GatewayClient,
    name: str,
    urls: tuple[str, ...],
    dns: bool,
    kind: str,
    credential: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Register the server at URL as NAME and probe it. One that is down is saved as well.

    Give the URL of each of several servers that serve the same, or a headless name with --dns: each is an
    instance, which is probed and looked at by itself.
    """
    optional = {"credential": credential, "tokenizer": tokenizer, "discovery": "dns" if dns else None}
    where = {"url": urls[0]} if len(urls) == 1 else {"urls": urls}
    body = {"name": name, **where, "kind": kind} | {key: value for key, value in optional.items() if value}
    _show(client.post(_ROUTE, body), as_json)


@backends.command(name="list")
@json_option
@with_gateway
def list_(client: GatewayClient, as_json: bool) -> None:
    """List the registered servers."""
    answer = client.get(_ROUTE)
    if as_json:
        print_json(answer)
        return
    if not answer["backends"]:
        click.echo("No backends yet. Register one: ace backends add NAME URL")
        return
    print_table(
        ("name", "state", "kind", "url", "models", "reason"),
        (
            (b["name"], _state(b), b["kind"], b["urls"], b["models"], b["state_reason"])
            for b in answer["backends"]
        ),
    )
    _show_warnings(answer["backends"])


@backends.command()
@click.argument("name")
@json_option
@with_gateway
def show(client: GatewayClient, name: str, as_json: bool) -> None:
    """Show what is known of NAME: its state, every finding with its evidence, and each executor."""
    _show(client.get(_path(name)), as_json)


@backends.command()
@click.argument("name")
@json_option
@with_gateway
def probe(client: GatewayClient, name: str, as_json: bool) -> None:
    """Probe NAME again and show what was found."""
    _show(client.post(f"{_path(name)}/probe"), as_json)


@backends.command()
@click.argument("name")
@json_option
@with_gateway
def calibrate(client: GatewayClient, name: str, as_json: bool) -> None:
    """Time what a step of gateway_loop costs on NAME at the load it has now, and show it."""
    _show(client.post(f"{_path(name)}/calibrate", time_limit_s=CALIBRATION_LIMIT_S), as_json)


@backends.command()
@click.argument("name")
@json_option
@with_gateway
def remove(client: GatewayClient, name: str, as_json: bool) -> None:
    """Remove NAME; requests under way are finished."""
    client.delete(_path(name))
    if as_json:
        print_json({"removed": name})
    else:
        click.echo(f"Removed {name}.")


def _path(name: str) -> str:
    return f"{_ROUTE}/{quote(name, safe='')}"


def _show(backend: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(backend)
        return
    reason = f": {backend['state_reason']}" if backend["state_reason"] else ""
    probed_at = backend["probed_at"]
    probed = datetime.fromtimestamp(probed_at, UTC).isoformat(timespec="seconds") if probed_at else "never"
    every = "every address of " if backend["discovery"] == "dns" else ""
    facts = {
        "backend": f"{backend['name']} at {every}{', '.join(backend['urls'])}",
        "state": _state(backend) + reason,
        "kind": f"{backend['kind']} (declared: {backend['declared_kind']})",
        "models": ", ".join(backend["models"]) or "-",
        "credential": backend["credential"] or "-",
        "tokenizer": backend["tokenizer"] or "-",
        "declared by": backend["declared_by"] or "hand",
        "probed": probed,
    }
    for name, value in facts.items():
        click.echo(printable(f"{name + ':':<13}{value}"))
    click.echo()
    print_table(
        ("capability", "support", "value", "evidence"),
        ((f["capability"], f["support"], f["value"], f["evidence"]) for f in backend["findings"]),
    )
    click.echo()
    _show_instances(backend)
    for executor in backend["executors"]:
        possible = "possible" if executor["possible"] else "not possible"
        click.echo(printable(f"{executor['name']}: {possible}. {executor['sentence']}"))
    _show_warnings([backend])


def _state(backend: dict[str, Any]) -> str:
    """Up or down, and how many of several instances are up."""
    instances = backend["instances"]
    if len(instances) < 2:
        return str(backend["state"])
    up = sum(instance["state"] == "up" for instance in instances)
    return f"{backend['state']} ({up} of {len(instances)})"


def _show_instances(backend: dict[str, Any]) -> None:
    if len(backend["instances"]) < 2 and backend["discovery"] == "none":
        return
    differing = backend["differing"]
    print_table(
        ("instance", "state", "version", "models", *differing, "reason"),
        (
            (
                instance["instance"],
                instance["state"],
                instance["version"],
                instance["models"],
                *(_support(instance, capability) for capability in differing),
                instance["state_reason"],
            )
            for instance in backend["instances"]
        ),
    )
    click.echo()


def _support(instance: dict[str, Any], capability: str) -> str:
    answers = {finding["capability"]: str(finding["support"]) for finding in instance["findings"]}
    return answers.get(capability, "unknown")


def _show_warnings(backends: list[dict[str, Any]]) -> None:
    for backend in backends:
        for warning in backend["warnings"]:
            click.echo(printable(f"warning: {warning}"))
