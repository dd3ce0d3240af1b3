"""The REST client of the command line, and how its answers are shown."""

from __future__ import annotations

import functools
import getpass
import json
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import click

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8080"
_ON_THIS_MACHINE = ("http://127.0.0.1", "http://localhost", "http://[::1]")
TIME_LIMIT_S = 120.0
CALIBRATION_LIMIT_S = 600.0
"""Calibration waits for the load to be steady, and makes each of its calls several times."""

_LINE_STAYS_A_LINE = 10_000

_P = ParamSpec("_P")
_R = TypeVar("_R")


class GatewayClient:
    """Calls one gateway's REST API; every failure is one line for the person who typed the command.

    Args:
        url: The gateway's base URL.
        token: The admin token, if there is one.
    """

    def __init__(self, url: str, token: str | None) -> None:
        import httpx

        self._url = url.rstrip("/")
        self._late = httpx.ReadTimeout
        self._failures = (httpx.HTTPError, httpx.InvalidURL)
        self._http = httpx.Client(
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=TIME_LIMIT_S,
            # A proxy for the outside world cannot reach this machine's own addresses.
            trust_env=not self._url.startswith(_ON_THIS_MACHINE),
        )

    def __enter__(self) -> Self:
        """The client, open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close its connections."""
        self._http.close()

    def get(self, path: str, **params: object) -> Any:
        """The JSON that a route answers; parameters that are None are left out."""
        given = {name: str(value) for name, value in params.items() if value is not None}
        return self._call("GET", path, params=given)

    def post(self, path: str, body: object = None, *, time_limit_s: float = TIME_LIMIT_S) -> Any:
        """The JSON that a route answers to a JSON body."""
        return self._call("POST", path, json=body, timeout=time_limit_s)

    def put(self, path: str, body: object) -> Any:
        """The JSON that a route answers to a JSON body put there."""
        return self._call("PUT", path, json=body)

    def delete(self, path: str, **params: str) -> Any:
        """Delete what the path names; the JSON that is answered, if any."""
        return self._call("DELETE", path, params=params)

    def page(self, path: str, *, time_limit_s: float) -> str:
        """The text of a route, whatever its status."""
        return self._asked("GET", path, timeout=time_limit_s).text

    def _asked(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            return self._http.request(method, self._url + path, **kwargs)
        except self._late:
            raise click.ClickException(
                f"The gateway at {self._url} has not answered {path} in time. It may be at work still: "
                "its log and `ace backends list` tell."
            ) from None
        except self._failures as error:
            raise click.ClickException(
                f"No gateway answers at {self._url} ({error}). Start one with `ace serve`, "
                "or name another with --gateway or ACE_GATEWAY_URL."
            ) from None

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        reply = self._asked(method, path, **kwargs)
        if reply.status_code == 401:
            raise click.ClickException(
                f"The gateway at {self._url} wants a token. Set ACE_TOKEN to its admin token, "
                "which `ace serve` printed at its first start."
            )
        if not reply.is_success:
            raise click.ClickException(_error_message(reply))
        return self._parsed(reply) if reply.content else None

    def _parsed(self, reply: httpx.Response) -> Any:
        try:
            return reply.json()
        except ValueError:
            raise click.ClickException(
                f"What answers at {self._url} is not an ACE gateway: no JSON from {reply.request.url.path}."
            ) from None


def _error_message(reply: httpx.Response) -> str:
    try:
        message = str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = f"{reply.request.url} answered HTTP {reply.status_code}."
    return printable(message)


def operator() -> str:
    """Who types: the name under which this machine knows them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def with_gateway(
    command: Callable[Concatenate[GatewayClient, _P], _R],
) -> Callable[_P, _R]:
    """Give a command the option --gateway, and a client of that gateway as its first argument."""

    @click.option(
        "--gateway",
        envvar="ACE_GATEWAY_URL",
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        help="The gateway to talk to (ACE_GATEWAY_URL); ACE_TOKEN holds its admin token.",
    )
    @functools.wraps(command)
    def with_client(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        url = str(kwargs.pop("gateway"))
        with GatewayClient(url, os.environ.get("ACE_TOKEN")) as client:
            return command(client, *args, **kwargs)

    return with_client


json_option = click.option("--json", "as_json", is_flag=True, help="Print the REST answer as JSON.")


def print_json(value: object) -> None:
    """Print a REST answer."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows under their columns; cells are taken as plain text, whoever wrote them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _LINE_STAYS_A_LINE
    console.print(table)


def cell(value: object) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value)) or "-"
    return printable(str(value)) or "-"


def printable(text: str) -> str:
    """`text` without characters that would steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
