"""`ace kill` and `ace overlays`: what takes speculation away, through a gateway or by the kill file alone."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gateway.cli.client import GatewayClient, json_option, operator, print_json, print_table, with_gateway

_ROUTE = "/admin/v1/overlays"
_KILL = "/admin/v1/kill"

_lasts = click.option("--for", "lasts", metavar="TIME", help="It ends after this: 60s, 10m, 2h.")


@click.command()
@click.option("--tenant", help="Only requests of this tenant.")
@click.option("--model", help="Only requests for this model; `llama-3*` names several.")
@click.option("--backend", help="Only requests at this backend.")
@click.option("--reason", help="Why; it is shown with every request that it stops.")
@_lasts
@click.option("--lift", is_flag=True, help="End every kill, or the one with ID.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Without gateway and store: write, or with --lift remove, the kill file of this data folder.",
)
@click.argument("overlay_id", metavar="[ID]", required=False)
@json_option
@with_gateway
def kill(
    client: GatewayClient,
    tenant: str | None,
    model: str | None,
    backend: str | None,
    reason: str | None,
    lasts: str | None,
    lift: bool,
    data: Path | None,
    overlay_id: str | None,
    as_json: bool,
) -> None:
    """Stop all speculation and replay within two seconds; streams under way go on plainly.

    It holds until it is lifted, also over restarts. `off` traffic is not touched.
    """
    scope = {"tenant": tenant, "model": model, "backend": backend}
    if lift and (any(scope.values()) or reason or lasts):
        raise click.UsageError("--lift takes an ID or nothing; `ace overlays list` shows the ids.")
    if overlay_id and not lift:
        raise click.UsageError("An ID is for --lift; to kill, name --tenant, --model, --backend or nothing.")
    if data is not None:
        if lasts or overlay_id:
            raise click.UsageError("A kill file has no time limit and no ids: leave out --for and ID.")
        _by_file(data, scope, reason, lift=lift)
    elif lift:
        _lift(client, overlay_id, as_json=as_json)
    else:
        _kill(client, scope, reason, lasts, as_json=as_json)


@click.group()
def overlays() -> None:
    """Show what takes speculation away beside the policy; demote a rule, shorten its drafts, and back."""


@overlays.command(name="list")
@click.option("--all", "everything", is_flag=True, help="Also those that were lifted or have expired.")
@json_option
@with_gateway
def list_(client: GatewayClient, everything: bool, as_json: bool) -> None:
    """List overlays, kills among them."""
    answer = client.get(_ROUTE, all="true" if everything else None)
    if as_json:
        print_json(answer)
        return
    for warning in _warnings(answer):
        click.echo(warning, err=True)
    if not answer["overlays"]:
        click.echo("No overlays: the policy holds as it stands.")
        return
    print_table(
        ("id", "kind", "of", "value", "state", "by", "since", "until", "reason"),
        (
            (
                *(shown["id"], shown["kind"], _scope(shown["scope"]), shown["value"], _state(shown)),
                *(shown["author"], _time(shown["created_at"]), _time(shown["expires_at"]), shown["reason"]),
            )
            for shown in answer["overlays"]
        ),
    )


@overlays.command()
@click.argument("kind", type=click.Choice(["demote", "lookahead"]))
@click.argument("rule")
@click.argument("value")
@click.option("--tenant", help="Only requests of this tenant.")
@click.option("--model", help="Only requests for this model.")
@click.option("--backend", help="Only requests at this backend.")
@click.option("--reason", required=True, help="Why; it is shown in explanations and records.")
@_lasts
@json_option
@with_gateway
def add(
    client: GatewayClient,
    kind: str,
    rule: str,
    value: str,
    tenant: str | None,
    model: str | None,
    backend: str | None,
    reason: str,
    lasts: str | None,
    as_json: bool,
) -> None:
    """Narrow what RULE does: `demote RULE shadow|off`, or `lookahead RULE K`."""
    made = client.post(
        _ROUTE,
        {
            "kind": kind,
            "scope": {"rule": rule, "tenant": tenant, "model": model, "backend": backend},
            "value": int(value) if value.isdigit() else value,
            "reason": reason,
            "author": operator(),
            "lasts": lasts,
        },
    )
    if as_json:
        print_json(made)
    else:
        click.echo(
            f"{made['id']}: {kind} of {rule} to {value}. Take it back: ace overlays remove {made['id']}"
        )


@overlays.command()
@click.argument("overlay_id", metavar="ID")
@json_option
@with_gateway
def remove(client: GatewayClient, overlay_id: str, as_json: bool) -> None:
    """Lift an overlay; what the policy says holds again."""
    _lift(client, overlay_id, as_json=as_json)


def _kill(
    client: GatewayClient,
    scope: dict[str, str | None],
    reason: str | None,
    lasts: str | None,
    *,
    as_json: bool,
) -> None:
    given = {"reason": reason, "lasts": lasts, "author": operator(), **scope}
    made = client.post(_KILL, {name: value for name, value in given.items() if value is not None})
    if as_json:
        print_json(made)
        return
    until = f" until {_time(made['expires_at'])}" if made["expires_at"] else ""
    click.echo(f"Killed {_scope(made['scope'])}{until}. Resume: ace kill --lift {made['id']}")


def _lift(client: GatewayClient, overlay_id: str | None, *, as_json: bool) -> None:
    if overlay_id:
        client.delete(f"{_ROUTE}/{overlay_id}", author=operator())
        if as_json:
            print_json({"lifted": overlay_id})
        else:
            click.echo(f"Lifted {overlay_id}.")
        return
    left = client.delete(_KILL, author=operator())
    if as_json:
        print_json(left)
        return
    if left["active"]:
        said = ", ".join(kill["author"] for kill in left["kills"])
        raise click.ClickException(f"Every kill in the store was lifted, and these still kill: {said}.")
    click.echo("Nothing is killed any more.")


def _by_file(data: Path, scope: dict[str, str | None], reason: str | None, *, lift: bool) -> None:
    from gateway.policy.kill_switch import NotUnderstood, remove_file, write_file
    from gateway.policy.overlays import Scope
    from gateway.settings import Settings

    file = Settings.load(os.environ, data_dir=data).kill_path
    try:
        if lift:
            remove_file(file)
            click.echo(f"Removed {file}; what it killed resumes within two seconds.")
            return
        said = write_file(
            file, Scope(**scope), f"{_time(datetime.now(UTC).timestamp())} {operator()}: {reason}"
        )
    except NotUnderstood as error:
        raise click.UsageError(f"{str(error).capitalize()}.") from None
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror or error}.") from None
    click.echo(f"{file} kills {said}. Do the same on every replica; resume: ace kill --data {data} --lift")


def _warnings(answer: dict[str, Any]) -> list[str]:
    warnings = [f"Kill switch: {error}." for error in [answer["switch"]["error"]] if error]
    if not answer["read"]:
        warnings.append("The store's overlays have not been read yet, so nothing is speculated.")
    return warnings


def _scope(scope: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in scope.items() if value is not None) or "everything"


def _state(shown: dict[str, Any]) -> str:
    if shown["holds"]:
        return "in force"
    return f"lifted by {shown['lifted_by']}" if shown["lifted_at"] else "expired"


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
