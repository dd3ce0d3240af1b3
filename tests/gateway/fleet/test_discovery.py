"""A headless name's addresses."""

import asyncio
import socket

import pytest
from aiohttp.abc import ResolveResult

from gateway.fleet.discovery import NameDiscovery, NotDiscovered
from gateway.fleet.urls import CheckedResolver
from tests.fakes.resolver import FakeResolver

URL = "http://llama.svc:8000/team"


def discovering(*addresses: str) -> NameDiscovery:
    return NameDiscovery(CheckedResolver(FakeResolver({"llama.svc": addresses})))


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["10.0.0.10", "10.0.0.9", "10.0.0.9"], ("10.0.0.9", "10.0.0.10")),
        (["fd00::2", "fd00::1"], ("fd00::1", "fd00::2")),
        (["fd00::1", "10.0.0.1"], ("10.0.0.1",)),
    ],
)
async def test_every_server_is_found_once_in_a_steady_order(
    addresses: list[str], expected: tuple[str, ...]
) -> None:
    assert await discovering(*addresses)(URL) == expected


async def test_a_name_without_addresses_says_so() -> None:
    with pytest.raises(NotDiscovered, match=r"llama\.svc has no address"):
        await discovering()(URL)


async def test_an_unknown_name_says_so() -> None:
    with pytest.raises(NotDiscovered, match=r"other\.svc does not resolve"):
        await discovering("10.0.0.1")("http://other.svc")


async def test_one_forbidden_address_refuses_the_name() -> None:
    with pytest.raises(NotDiscovered, match="never connected to"):
        await discovering("10.0.0.1", "169.254.169.254")(URL)


class _Hanging(FakeResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        await asyncio.Event().wait()
        raise AssertionError(host)


async def test_a_resolver_that_hangs_is_not_waited_for() -> None:
    discover = NameDiscovery(_Hanging({}), time_limit_s=0.01)
    with pytest.raises(NotDiscovered, match=r"not resolved within 0\.01 s"):
        await discover(URL)
