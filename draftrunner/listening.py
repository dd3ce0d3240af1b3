"""The address that a service listens on."""

from __future__ import annotations

import socket

from draftrunner.errors import StartError


def listen(host: str, port: int) -> socket.socket:
    """Listen on `host` and `port`; port 0 takes a free one.

    Raises:
        StartError: The address cannot be listened on.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host} port {port}: {error.strerror}. Choose others with --host and --port."
        ) from error


def own_url(host: str, port: int) -> str:
    """Return the URL under which other machines reach what listens on `host`."""
    reachable = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared, not bound
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
