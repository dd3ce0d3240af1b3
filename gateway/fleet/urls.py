"""Which URLs a backend may have, and which addresses may be connected to (design.md 13).

Model servers live in private networks and on loopback, so those are allowed. What no model server
lives at is not: link-local and multicast addresses, `0.0.0.0/8`, reserved ranges, and the addresses
and names under which clouds hand out credentials. A name's addresses are checked again at each connection.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.errors import MalformedRequest

_METADATA_ADDRESSES = frozenset(
    ip_address(text)
    for text in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})

_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_RESERVED = IPv4Network("240.0.0.0/4")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_V4_COMPATIBLE = IPv6Network("::/96")
_SITE_LOCAL = IPv6Network("fec0::/10")

_OTHER_PROTOCOLS = frozenset(
    {7, 9, 19, 21, 22, 23, 25, 53, 110, 111, 135, 139, 143, 389, 445, 465, 514, 587, 636, 993, 995}
    | {2049, 3306, 5432, 6379, 11211, 27017}
)
"""Ports whose servers might read a command out of an HTTP request."""

_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
_PASTED_ENDPOINT = re.compile(r"/(chat/completions|completions|models|embeddings|responses)$")


def check_url(text: str) -> str:
    """The base URL of a model server in its one spelling: no trailing slash, no trailing `/v1`.

    Raises:
        MalformedRequest: It is no http(s) base URL, or names an address that is never connected to.
    """
    parts, port = _split(text.strip())
    host = _checked_host(parts.hostname or "", text)
    if port in _OTHER_PROTOCOLS:
        raise _refused(text, f"port {port} belongs to another protocol than HTTP")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}{_checked_path(parts.path, text)}"


def why_refused(address: IPv4Address | IPv6Address) -> str | None:
    """Why an address is never connected to; None when it may be."""
    plain = _inner_v4(address) or address
    if plain in _METADATA_ADDRESSES:
        return "is where a cloud hands out credentials"
    if plain.is_link_local or plain in _SITE_LOCAL:
        return "is link-local, where clouds hand out credentials"
    if plain.is_multicast:
        return "is a multicast address"
    if plain.is_unspecified or plain in _THIS_NETWORK:
        return "names no host"
    if plain in _RESERVED:
        return "is reserved"
    return None


class AddressRefused(OSError):
    """A name resolved to an address that is never connected to."""

    def __init__(self, host: str, address: str, reason: str) -> None:
        super().__init__(f"{host} resolves to {address}, which {reason}; it is never connected to")


class CheckedResolver(AbstractResolver):
    """Resolves names for aiohttp and refuses a name if any one of its addresses is refused.

    aiohttp asks at every new connection, and connects to the very addresses that were checked. Address
    literals never come here: `check_url` has judged them.
    """

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The host's addresses.

        Raises:
            OSError: The name is not known, or has a refused address (AddressRefused).
        """
        found = await self._inner.resolve(host, port, family)
        for result in found:
            if reason := why_refused(ip_address(result["host"])):
                raise AddressRefused(host, result["host"], reason)
        return found

    async def close(self) -> None:
        """Release the inner resolver."""
        await self._inner.close()


def _split(text: str) -> tuple[SplitResult, int | None]:
    """The URL's parts, once it has no part that a base URL cannot have."""
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise _refused(
            text, "it holds characters that a URL does not have; write other alphabets in punycode"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise _refused(text, str(error)) from error
    if parts.scheme not in {"http", "https"}:
        raise _refused(text, "only http:// and https:// are spoken")
    if "@" in parts.netloc:
        # Not echoed: what stands before the @ may be a password.
        raise MalformedRequest(
            "The backend URL holds a user name or password. Leave it out and give the backend's own key "
            "by reference: `credential` as env:NAME or file:PATH."
        )
    if "[" in parts.netloc and ":" not in (parts.hostname or ""):
        raise _refused(text, "only an IPv6 address stands in brackets")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise _refused(text, "a base URL has neither query nor fragment")
    if port == 0 or parts.netloc.endswith(":"):
        raise _refused(text, "a port is a number from 1 to 65535")
    return parts, port


def _checked_host(host: str, text: str) -> str:
    """The host in its one spelling. Ambiguous spellings of addresses are refused, not guessed at."""
    name = host.removesuffix(".")
    if not name:
        raise _refused(text, "it names no host")
    if name in _METADATA_NAMES:
        raise _refused(text, f"{name} is where a cloud hands out credentials")
    try:
        address = ip_address(name)
    except ValueError:
        return _checked_name(name, text)
    if isinstance(address, IPv6Address) and address.scope_id:
        raise _refused(text, "an address with a zone is link-local")
    if reason := why_refused(address):
        raise _refused(text, f"{address} {reason}")
    return str(address)


def _checked_name(name: str, text: str) -> str:
    # Some resolvers read such names as addresses: 2852039166, 0xa9.254.0xa9fe, 169.254.43518.
    if all(_NUMBER.fullmatch(part) for part in name.split(".")):
        raise _refused(text, f"{name} is an unusual spelling of an address; write it as four decimal numbers")
    if not _HOST_NAME.fullmatch(name):
        raise _refused(text, f"{name!r} is not a host name")
    return name


def _checked_path(path: str, text: str) -> str:
    path = path.rstrip("/").removesuffix("/v1").rstrip("/")
    if pasted := _PASTED_ENDPOINT.search(path):
        raise _refused(text, f"it is an endpoint; register its base, without {pasted.group()}")
    if path.endswith("/v1") or "//" in path or "%" in path or {".", ".."} & set(path.split("/")):
        raise _refused(text, f"the path {path!r} can be read in more than one way")
    return path


def _inner_v4(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for, or tunnels to."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped or address.sixtofour:
        return address.ipv4_mapped or address.sixtofour
    if address.teredo:
        return address.teredo[1]
    translated = address in _NAT64 or address in _NAT64_LOCAL or address in _V4_COMPATIBLE
    if translated and not address.is_loopback and not address.is_unspecified:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _refused(text: str, reason: str) -> MalformedRequest:
    return MalformedRequest(
        f"The backend URL {text[:200]!r} is refused: {reason}. "
        "Give a base URL such as http://gpu-1:8000 or https://models.example.org/team-a."
    )
