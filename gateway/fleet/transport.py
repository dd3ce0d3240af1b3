"""Connections for httpx that go only to addresses that were checked."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address

import httpx
from aiohttp.abc import AbstractResolver

from gateway.fleet.urls import CheckedResolver, why_refused


class CheckedTransport(httpx.AsyncBaseTransport):
    """Resolves names as `CheckedResolver` does, and connects to the very addresses that it let pass.

    Args:
        resolver: Names to addresses.
        address: The one to connect to, whatever a name resolves to; None asks the resolver.
    """

    def __init__(self, resolver: AbstractResolver, address: str | None = None) -> None:
        self._resolver = CheckedResolver(resolver)
        self._address = address
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            httpx.ConnectError: The name is not known, has a refused address, or no address answers.
        """
        name = request.url.host
        # The Host header was made from the name, and a certificate must be for the name too.
        request.extensions = {**request.extensions, "sni_hostname": name}
        failure = httpx.ConnectError(f"{name} has no address", request=request)
        for address in await self._addresses(request):
            request.url = request.url.copy_with(host=address)
            try:
                return await self._inner.handle_async_request(request)
            except httpx.ConnectError as error:
                failure = error
        raise failure

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()
        await self._resolver.close()

    async def _addresses(self, request: httpx.Request) -> Sequence[str]:
        name = request.url.host
        if self._address is not None:
            if reason := why_refused(ip_address(self._address)):
                raise httpx.ConnectError(f"{self._address} {reason}", request=request)
            return [self._address]
        if _is_address(name):
            return [name]
        try:
            found = await self._resolver.resolve(name, request.url.port or 0, socket.AF_UNSPEC)
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        return [result["host"] for result in found]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
