"""`ace serve`: checks everything that can be checked before the first request, then serves."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from gateway import __version__
from gateway.errors import SettingsError
from gateway.settings import Settings

_PATH = click.Path(path_type=Path)
_KEEP_ALIVE_S = 75
_WORKER_SILENCE_S = 30


@click.command()
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", help="Port to listen on; 0 takes a free one. [default: 8080]")
@click.option("--data", "data_dir", type=_PATH, metavar="DIR", help="Where the store and tokens are kept.")
@click.option("--policy", "policy_path", type=_PATH, metavar="FILE", help="Policy; without one all is off.")
@click.option("--fleet", "fleet_path", type=_PATH, metavar="FILE", help="Backends, declared by a file.")
@click.option("--workers", help="Processes that serve. [default: 1]")
def serve(**flags: object) -> None:
    """Run the gateway. Every flag has a variable ACE_*, and some settings have only that."""
    settings = Settings.load(os.environ, **flags)
    _check_files(settings)
    with bound_socket(settings.host, settings.port) as listener:
        admin_token = asyncio.run(prepare(settings))
        settings = replace(settings, port=listener.getsockname()[1])
        click.echo(_greeting(settings, admin_token), err=True)
        if settings.workers == 1:
            _serve_here(settings, listener)
        else:
            _serve_in_workers(settings, listener)


async def prepare(settings: Settings) -> str | None:
    """Make what the first start needs: tables and tokens.

    Returns:
        A new admin token, to be shown now or never; None when there was one.

    Raises:
        SettingsError: Others could connect, and nothing would ask them for a key.
        StoreError: The store cannot be used.
    """
    from gateway.keys import KeyRing, open_runner_token
    from gateway.store.store import Store

    store = Store(settings.database_url)
    keys = KeyRing(store=store, clock=time.time, anonymous_allowed=False)
    try:
        await store.migrate()
        has_key = any(key.revoked_at is None for key in await keys.all())
        if not (settings.loopback or settings.admin_token or has_key):
            raise SettingsError(_needs_auth(settings))
        open_runner_token(settings.runner_token, settings.runner_token_file)
        return await keys.open_admin(settings.admin_token)
    finally:
        await store.close()


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
        return f"Port {port} of {host} is in use. Stop what listens there, or give another --port."
    return f"Cannot listen on port {port} of {host}: {error.strerror or error}. See --host and --port."


def _check_files(settings: Settings) -> None:
    if settings.policy_path is not None:
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
    lines = {
        "OpenAI API": f"{url}/v1",
        "REST API": f"{url}/docs",
        "metrics": f"{url}/metrics",
        "data": settings.data_dir,
        "policy": settings.policy_path or "none, so everything is off; write one with `ace init`",
        "fleet": settings.fleet_path or "no file; register backends with `ace backends add`",
    }
    greeting = f"ACE gateway {__version__}\n" + "".join(f"  {f'{k}:':<12}{v}\n" for k, v in lines.items())
    if admin_token:
        greeting += f"\nAdmin token, shown this once; keep it as ACE_TOKEN:\n\n  {admin_token}\n"
    return greeting


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
    }


def _serve_here(settings: Settings, listener: socket.socket) -> None:
    import uvicorn

    from gateway.app import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(settings), **_uvicorn_options(settings)))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _serve_in_workers(settings: Settings, listener: socket.socket) -> None:
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    config = uvicorn.Config("gateway.worker:app", factory=True, **_uvicorn_options(settings))
    with TemporaryDirectory(prefix="ace-metrics-") as counters:
        os.environ.update(settings.as_env(), PROMETHEUS_MULTIPROC_DIR=counters)
        supervisor = Multiprocess(config, sockets=[listener])
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        sys.exit(STARTUP_FAILURE)
