"""What the probes connect to."""

import httpx
import pytest

from gateway.fleet.transport import CheckedTransport
from probes.model import Support
from probes.suite import probe
from tests.fakes.model_list import model_list_server
from tests.fakes.resolver import FakeResolver


async def test_a_name_is_connected_to_by_its_checked_address() -> None:
    async with model_list_server() as server:
        transport = CheckedTransport(FakeResolver({"up.test": ["127.0.0.1"]}))
        async with httpx.AsyncClient(transport=transport) as client:
            reply = await client.get(f"http://up.test:{server.port}/v1/models")
        assert reply.status_code == 200
        assert server.asked[0].host == f"up.test:{server.port}"


async def test_an_address_is_not_looked_up() -> None:
    async with model_list_server() as server:
        resolver = FakeResolver({})
        async with httpx.AsyncClient(transport=CheckedTransport(resolver)) as client:
            assert (await client.get(f"{server.url}/v1/models")).status_code == 200
        assert resolver.asked == []


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with model_list_server() as server:
        transport = CheckedTransport(FakeResolver({"up.test": ["127.0.0.2", "127.0.0.1"]}))
        async with httpx.AsyncClient(transport=transport) as client:
            reply = await client.post(f"http://up.test:{server.port}/v1/models", content=b"body")
        assert reply.status_code == 200


@pytest.mark.parametrize("addresses", [["169.254.169.254"], ["127.0.0.1", "::ffff:169.254.169.254"]])
async def test_a_name_with_a_forbidden_address_is_not_connected_to(addresses: list[str]) -> None:
    async with model_list_server() as server:
        transport = CheckedTransport(FakeResolver({"up.test": addresses}))
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx.ConnectError, match="never connected to"):
                await client.get(f"http://up.test:{server.port}/v1/models")
        assert server.asked == []


@pytest.mark.parametrize("answers", [{}, {"up.test": []}])
async def test_a_name_without_addresses_is_a_connection_error(answers: dict[str, list[str]]) -> None:
    async with httpx.AsyncClient(transport=CheckedTransport(FakeResolver(answers))) as client:
        with pytest.raises(httpx.ConnectError, match=r"up\.test"):
            await client.get("http://up.test:1/v1/models")


async def test_closing_closes_the_resolver() -> None:
    resolver = FakeResolver({})
    await CheckedTransport(resolver).aclose()
    assert resolver.closed


async def test_a_probe_reports_a_forbidden_address_as_evidence() -> None:
    transport = CheckedTransport(FakeResolver({"up.test": ["169.254.169.254"]}))
    result = await probe("http://up.test:8000", kind="auto", headers={}, time_limit_s=5, transport=transport)
    assert not result.up
    assert "never connected to" in result.reason
    assert [finding.support for finding in result.findings] == [Support.UNKNOWN]
