"""The addresses behind a headless name: each is an instance."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver


class NotDiscovered(Exception):
    """A name's addresses could not be learnt; the message says why."""


class NameDiscovery:
    """Resolves the name in a URL.

    Args:
        resolver: A `CheckedResolver`, so that no forbidden address becomes an instance.
        time_limit_s: Longest wait.
    """

    def __init__(self, resolver: AbstractResolver, *, time_limit_s: float = 5.0) -> None:
        self._resolver = resolver
        self._time_limit_s = time_limit_s

    async def __call__(self, url: str) -> tuple[str, ...]:
        """Every address, sorted. IPv4 alone where there are both, since a server has often one of each.

        Raises:
            NotDiscovered: There is none, or the name could not be resolved.
        """
        name = urlsplit(url).hostname or ""
        try:
            async with asyncio.timeout(self._time_limit_s):
                found = await self._resolver.resolve(name, 0, socket.AF_UNSPEC)
        except TimeoutError:
            raise NotDiscovered(f"{name} was not resolved within {self._time_limit_s:g} s") from None
        except OSError as error:
            raise NotDiscovered(f"{name} does not resolve: {error.strerror or error}") from None
        addresses = {ip_address(result["host"]) for result in found}
        preferred = {address for address in addresses if address.version == 4} or addresses
        if not preferred:
            raise NotDiscovered(f"{name} has no address")
        return tuple(str(address) for address in sorted(preferred, key=int))
