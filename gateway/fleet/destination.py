"""Where an instance is connected to, and as whom it is spoken to there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway.fleet.urls import AddressRefused, why_refused


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to connect to.

    Attributes:
        url: Base URL that names the address.
        headers: What has to be sent there beside a request's own headers.
        server_name: Whose certificate is to be shown; None for the URL's own host.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    server_name: str | None = None


@lru_cache(maxsize=4096)
def destination_of(url: str, address: str | None) -> Destination:
    """How to reach the base URL `url`, at one of its name's addresses if one is given.

    Raises:
        AddressRefused: The address is one that is never connected to.
    """
    if address is None:
        return Destination(url)
    parts = urlsplit(url)
    name = parts.hostname or ""
    # Checked here too: an address may come from the store, and be older than the rule that refuses it.
    if reason := why_refused(ip_address(address)):
        raise AddressRefused(name, address, reason)
    at = f"[{address}]" if ":" in address else address
    port = "" if parts.port is None else f":{parts.port}"
    return Destination(
        url=f"{parts.scheme}://{at}{port}{parts.path}",
        headers=(("host", parts.netloc),),
        server_name=name if parts.scheme == "https" else None,
    )
