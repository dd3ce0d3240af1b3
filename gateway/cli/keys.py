"""`ace keys`: API keys of tenants, through a running gateway or in the store of a data folder."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from gateway.cli.client import GatewayClient, json_option, print_json, print_table, with_gateway

if TYPE_CHECKING:
    from gateway.keys import KeyRing

_ROUTE = "/admin/v1/keys"
_R = TypeVar("_R")

_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Work on the store of this data folder, as `ace serve --data DIR` would find it, without a gateway.",
)


@click.group()
def keys() -> None:
    """Make, list and revoke the API keys that clients send."""


@keys.command()
@click.argument("name")
@click.option("--tenant", required=True, help="Whose requests come with this key.")
@_data_option
@json_option
@with_gateway
def add(client: GatewayClient, name: str, tenant: str, data: Path | None, as_json: bool) -> None:
    """Make a key and print it on stdout, the only time that it can be seen."""
    made = _desk(client, data).add(name, tenant)
    if as_json:
        print_json(made)
        return
    click.echo(f"Key {made['id']} of tenant {tenant}; it is shown this once:", err=True)
    click.echo(made["key"])


@keys.command(name="list")
@_data_option
@json_option
@with_gateway
def list_(client: GatewayClient, data: Path | None, as_json: bool) -> None:
    """List keys, revoked ones too; never the keys themselves."""
    answer = _desk(client, data).list()
    if as_json:
        print_json(answer)
        return
    if not answer["keys"]:
        click.echo("No keys yet. Make one: ace keys add NAME --tenant TENANT")
        return
    print_table(
        ("id", "name", "tenant", "begins", "made", "revoked"),
        (
            (k["id"], k["name"], k["tenant"], k["prefix"], _time(k["created_at"]), _time(k["revoked_at"]))
            for k in answer["keys"]
        ),
    )


@keys.command()
@click.argument("key_id", metavar="ID")
@_data_option
@json_option
@with_gateway
def revoke(client: GatewayClient, key_id: str, data: Path | None, as_json: bool) -> None:
    """Make the key with this id good no longer."""
    _desk(client, data).revoke(key_id)
    if as_json:
        print_json({"revoked": key_id})
    else:
        click.echo(f"Revoked {key_id}.")


class _Desk(Protocol):
    """Where keys are handed out; answers have the shapes of the REST API."""

    def add(self, name: str, tenant: str) -> dict[str, Any]: ...

    def list(self) -> dict[str, Any]: ...

    def revoke(self, key_id: str) -> None: ...


def _desk(client: GatewayClient, data: Path | None) -> _Desk:
    return _RestDesk(client) if data is None else _StoreDesk(data)


class _RestDesk:
    def __init__(self, client: GatewayClient) -> None:
        self._client = client

    def add(self, name: str, tenant: str) -> dict[str, Any]:
        return dict(self._client.post(_ROUTE, {"name": name, "tenant": tenant}))

    def list(self) -> dict[str, Any]:
        return dict(self._client.get(_ROUTE))

    def revoke(self, key_id: str) -> None:
        self._client.delete(f"{_ROUTE}/{key_id}")


class _StoreDesk:
    def __init__(self, data: Path) -> None:
        self._data = data

    def add(self, name: str, tenant: str) -> dict[str, Any]:
        from gateway.control.views import IssuedKeyView

        made = self._on_ring(lambda ring: ring.issue(name=name, tenant=tenant))
        stored = made.stored
        return IssuedKeyView(
            id=stored.id, name=stored.name, tenant=stored.tenant, key=made.secret, prefix=stored.prefix
        ).model_dump()

    def list(self) -> dict[str, Any]:
        from gateway.control.views import KeysView, KeyView

        found = self._on_ring(lambda ring: ring.all())
        return KeysView(keys=[KeyView.of(key) for key in found]).model_dump()

    def revoke(self, key_id: str) -> None:
        self._on_ring(lambda ring: ring.revoke(key_id))

    def _on_ring(self, act: Callable[[KeyRing], Awaitable[_R]]) -> _R:
        from gateway.keys import KeyRing
        from gateway.settings import Settings
        from gateway.store.store import Store

        settings = Settings.load(os.environ, data_dir=self._data)

        async def acted() -> _R:
            store = Store(settings.database_url)
            try:
                await store.migrate()
                return await act(KeyRing(store=store, clock=time.time, anonymous_allowed=False))
            finally:
                await store.close()

        return asyncio.run(acted())


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
