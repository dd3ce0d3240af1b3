"""`ace serve`: checks everything that can be checked before the first request, then serves."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from gateway import __version__
from gateway.errors import SettingsError, StoreError, StoreRefused
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.store.store import Store
    from gateway.worker import Worker

_PATH = click.Path(path_type=Path)
_KEEP_ALIVE_S = 75
_WORKER_SILENCE_S = 30
_DEAF_CLIENT_S = 2


@click.command()
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", help="Port to listen on; 0 takes a free one. [default: 8080]")
@click.option("--data", "data_dir", type=_PATH, metavar="DIR", help="Where the store and tokens are kept.")
@click.option("--policy", "policy_path", type=_PATH, metavar="FILE", help="Policy; without one all is off.")
@click.option("--fleet", "fleet_path", type=_PATH, metavar="FILE", help="Backends, declared by a file.")
@click.option("--workers", help="Processes that serve. [default: 1]")
def serve(**flags: object) -> None:
    """Run the gateway. Every flag has a variable ACE_*, and some settings have only that."""
    from gateway.worker import Worker

    settings = Settings.load(os.environ, **flags)
    _check_ports(settings)
    _check_files(settings)
    with ExitStack() as sockets:
        listener = sockets.enter_context(bound_socket(settings.host, settings.port))
        operations = None
        settings = replace(settings, port=listener.getsockname()[1])
        if settings.operations_port is not None:
            operations = sockets.enter_context(bound_socket(settings.host, settings.operations_port))
            settings = replace(settings, operations_port=operations.getsockname()[1])
        admin_token = asyncio.run(prepare(settings))
        click.echo(_greeting(settings, admin_token), err=True)
        worker = Worker(settings, operations)
        if settings.workers == 1:
            _serve_here(worker, listener)
        else:
            _serve_in_workers(worker, listener)


async def prepare(settings: Settings) -> str | None:
    """Make what the first start needs: tables and tokens.

    A database server that is away does not keep the gateway from starting: it is not ready before the
    server is back, and until then lets nobody in.

    Returns:
        A new admin token, to be shown now or never; None when there was one, or no store to keep it in.

    Raises:
        SettingsError: Others could connect, and nothing would ask them for a key.
        PolicyError: The store has no policy yet, and the file that would begin it is no valid one.
        StoreError: The store cannot be used, and waiting would not help.
    """
    from gateway.keys import KeyRing, open_runner_token
    from gateway.policy.stored import seed
    from gateway.store.store import Store

    store = Store(settings.database_url)
    keys = KeyRing(store=store, clock=time.time, anonymous_allowed=False)
    try:
        if not await _is_there(store):
            open_runner_token(settings.runner_token, settings.runner_token_file)
            return None
        has_key = any(key.revoked_at is None for key in await keys.all())
        if not (settings.loopback or settings.admin_token or has_key):
            raise SettingsError(_needs_auth(settings))
        if settings.policy_source == "store" and settings.policy_path:
            await seed(store, settings.policy_path, time.time)
        open_runner_token(settings.runner_token, settings.runner_token_file)
        return await keys.open_admin(settings.admin_token)
    finally:
        await store.close()


async def _is_there(store: Store) -> bool:
    """Whether the tables are as they should be; False when the server that has them is away."""
    try:
        await store.migrate()
    except StoreError as error:
        if store.is_file or isinstance(error, StoreRefused):
            raise
        click.echo(
            f"{error}\nStarting without it; /readyz says when it is back. If this is the first start, no "
            "admin token is made: set ACE_ADMIN_TOKEN, or start again then.\n",
            err=True,
        )
        return False
    return True


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet.

    Raises:
        SettingsError: The address cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` has two addresses, and clients of the IPv4 one are the more.
        family, *_, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.set_inheritable(True)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SettingsError(_cannot_bind(host, port, error)) from error
    return listener


def _cannot_bind(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is in use. Stop what listens there, or give another --port "
            "or ACE_OPERATIONS_PORT."
        )
    return f"Cannot listen on port {port} of {host}: {error.strerror or error}. See --host and --port."


def _check_ports(settings: Settings) -> None:
    # Bound twice a port would not be in use: that shows only when the second of the two listens.
    if settings.port and settings.port == settings.operations_port:
        raise SettingsError(
            f"--port and ACE_OPERATIONS_PORT are both {settings.port}. Give ACE_OPERATIONS_PORT another one, "
            "or none to have /healthz, /readyz and /metrics on the main port."
        )


def _check_files(settings: Settings) -> None:
    if settings.policy_path is not None and settings.policy_source == "file":
        from gateway.policy.load import load_policy

        load_policy(settings.policy_path)
    if settings.fleet_path is not None:
        from gateway.fleet.file import load_fleet

        load_fleet(settings.fleet_path)


def _needs_auth(settings: Settings) -> str:
    return (
        f"{settings.host} can be reached from other machines, and there is no API key yet. Make one with "
        f"`ace keys add NAME --tenant TENANT --data {settings.data_dir}`, or set ACE_ADMIN_TOKEN, "
        "or listen on 127.0.0.1."
    )


def _greeting(settings: Settings, admin_token: str | None) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{settings.port}"
    operations_port = settings.port if settings.operations_port is None else settings.operations_port
    lines = {
        "OpenAI API": f"{url}/v1",
        "REST API": f"{url}/docs",
        "metrics": f"http://{host}:{operations_port}/metrics",
        "data": settings.data_dir,
        "policy": _policy_line(settings),
        "kill file": settings.kill_path,
        "fleet": settings.fleet_path or "no file; register backends with `ace backends add`",
    }
    greeting = f"ACE gateway {__version__}\n" + "".join(f"  {f'{k}:':<12}{v}\n" for k, v in lines.items())
    if admin_token:
        greeting += f"\nAdmin token, shown this once; keep it as ACE_TOKEN:\n\n  {admin_token}\n"
    return greeting


def _policy_line(settings: Settings) -> object:
    if settings.policy_source == "store":
        return "kept in the store; see `ace policy show`"
    return settings.policy_path or "none, so everything is off; write one with `ace init`"


def _uvicorn_options(settings: Settings) -> dict[str, Any]:
    return {
        "workers": settings.workers,
        "loop": "uvloop",
        "http": "httptools",
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "proxy_headers": False,
        # Longer than load balancers keep theirs, so that it is never we who close one being reused.
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_worker_healthcheck": _WORKER_SILENCE_S,
        # The drain has cut everything by then: this is for clients that read nothing any more.
        "timeout_graceful_shutdown": ceil(settings.drain_timeout_s) + _DEAF_CLIENT_S,
    }


def _serve_here(worker: Worker, listener: socket.socket) -> None:
    # Set for someone else, or for an earlier run, whose counts would go on here.
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        os.environ.pop(name, None)
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(worker, factory=True, **_uvicorn_options(worker.settings)))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _serve_in_workers(worker: Worker, listener: socket.socket) -> None:
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE

    from gateway.workers import Workers

    config = uvicorn.Config(worker, factory=True, **_uvicorn_options(worker.settings))
    with TemporaryDirectory(prefix="ace-metrics-") as counters:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = counters
        workers = Workers(config, sockets=[listener])
        workers.run()
    if any(process.exitcode == STARTUP_FAILURE for process in workers.processes):
        sys.exit(STARTUP_FAILURE)
