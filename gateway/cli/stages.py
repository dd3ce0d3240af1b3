"""`ace stages`: what shadow and prod requests left behind."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from gateway.cli.client import GatewayClient, json_option, print_json, print_table, with_gateway

_COLUMNS = {
    "mode": "mode",
    "action": "action",
    "reason": "reason",
    "model": "model",
    "backend": "backend",
    "rule": "rule",
    "drafter": "drafter",
    "k": "K",
    "draft_tokens": "drafted",
    "accepted_tokens": "accepted",
    "acceptance_rate": "acceptance",
    "tokens_per_second": "tok/s",
    "multiplier": "multiplier",
}


@click.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
@json_option
@with_gateway
def stages(client: GatewayClient, limit: int, as_json: bool) -> None:
    """Show the newest stage records, one for each shadow or prod request."""
    answer = client.get("/admin/v1/stages", limit=limit)
    if as_json:
        print_json(answer)
        return
    if not answer["stages"]:
        click.echo("No stage records yet: they come from requests that a policy puts in shadow or prod.")
        return
    print_table(
        ("at", *_COLUMNS.values()),
        ((_time(stage["at"]), *(stage[name] for name in _COLUMNS)) for stage in answer["stages"]),
    )


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
