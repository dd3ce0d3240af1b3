"""The registry against real servers: behind a load balancer, behind a name, restarted."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from gateway.fleet.discovery import NameDiscovery
from gateway.fleet.examine import Examiner
from gateway.fleet.health import HttpHealthCheck, checked_session
from gateway.fleet.model import Backend, BackendState
from gateway.fleet.processes import CONSISTENT_LOOKS
from gateway.fleet.registry import Registry
from gateway.fleet.transport import CheckedTransport
from gateway.fleet.urls import CheckedResolver
from gateway.store.store import Store
from probes.model import Capability, Support
from probes.suite import probe
from tests.fakes.balancer import balanced
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import declared
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.resolver import FakeResolver
from tests.fakes.served import served


def server(started_at: int) -> OpenAIServer:
    return OpenAIServer(metrics=f"process_start_time_seconds {started_at}\n", version={"version": "0.32.0"})


pytestmark = pytest.mark.slow


@pytest.fixture
def urls() -> Iterator[list[str]]:
    """Two servers that were started at different times."""
    with ExitStack() as running:
        yield [running.enter_context(served(server(at).app)) for at in (1000, 2000)]


@asynccontextmanager
async def registry_of(store: Store, resolver: FakeResolver) -> AsyncIterator[Registry]:
    clock = FakeClock()
    async with checked_session(resolver) as session:
        yield Registry(
            store=store,
            examiner=Examiner(
                probe=probe,
                check_health=HttpHealthCheck(session),
                discover=NameDiscovery(CheckedResolver(resolver)),
                transport=lambda address: CheckedTransport(resolver, address),
                clock=clock,
            ),
            clock=clock,
            owner="test",
        )


@pytest.fixture
async def registry(store: Store) -> AsyncIterator[Registry]:
    async with registry_of(store, FakeResolver({"llama.svc": ["127.0.0.1", "127.0.0.2"]})) as made:
        yield made


def the_one(registry: Registry) -> Backend:
    (instance,) = registry.get("a").instances
    return instance


async def look_until_flagged(registry: Registry) -> None:
    for _ in range(6):
        await registry.check_health_once()
    assert the_one(registry).supports(Capability.SINGLE_PROCESS) is Support.NO


async def test_a_load_balancer_before_two_servers_is_flagged_until_one_is_left(
    registry: Registry, urls: list[str]
) -> None:
    with balanced(*urls) as balancer:
        await registry.add(declared(name="a", url=balancer.url, kind="openai"))
        await look_until_flagged(registry)
        evidence = the_one(registry).findings[Capability.SINGLE_PROCESS].evidence
        assert "00:16:40" in evidence
        assert "00:33:20" in evidence
        assert the_one(registry).state is BackendState.UP
        balancer.ports = balancer.ports[1:]
        for _ in range(CONSISTENT_LOOKS + 1):
            await registry.check_health_once()
        assert the_one(registry).supports(Capability.SINGLE_PROCESS) is Support.YES
        assert the_one(registry).process.started_at == 2000.0


async def test_a_server_that_takes_the_place_of_another_is_no_several(
    registry: Registry, urls: list[str]
) -> None:
    with balanced(urls[0]) as balancer:
        await registry.add(declared(name="a", url=balancer.url, kind="openai"))
        await registry.check_health_once()
        balancer.ports = [int(urls[1].rpartition(":")[2])]
        for _ in range(3):
            await registry.check_health_once()
    assert the_one(registry).supports(Capability.SINGLE_PROCESS) is Support.UNKNOWN
    assert the_one(registry).process.started_at == 2000.0


async def test_the_same_two_servers_listed_one_by_one_are_two_instances(
    registry: Registry, urls: list[str]
) -> None:
    await registry.add(declared(name="a", urls=urls, kind="openai"))
    for _ in range(3):
        await registry.check_health_once()
    instances = registry.get("a").instances
    assert [instance.process.started_at for instance in instances] == [1000.0, 2000.0]
    assert registry.get("a").differing == ()
    assert list(registry.get("a").warnings()) == []


async def test_a_name_is_probed_at_each_of_its_addresses(registry: Registry, urls: list[str]) -> None:
    port = urls[0].rpartition(":")[2]
    added = await registry.add(
        declared(name="a", url=f"http://llama.svc:{port}", discovery="dns", kind="openai")
    )
    up, nobody = added.instances
    assert (up.address, up.state, up.models) == ("127.0.0.1", BackendState.UP, ("m",))
    assert (nobody.address, nobody.state) == ("127.0.0.2", BackendState.DOWN)
    assert added.whole.state is BackendState.UP
