"""The registry with the real probes and health checks, against real sockets."""

from collections.abc import AsyncIterator

import pytest

from gateway.fleet.discovery import NameDiscovery
from gateway.fleet.examine import Examiner
from gateway.fleet.health import HttpHealthCheck, checked_session
from gateway.fleet.model import BackendState, EngineKind
from gateway.fleet.registry import Registry
from gateway.fleet.transport import CheckedTransport
from gateway.fleet.urls import CheckedResolver
from gateway.store.store import Store
from probes.model import Capability, Support
from probes.suite import SUITES, probe
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import declared
from tests.fakes.model_list import model_list_server
from tests.fakes.resolver import FakeResolver

RESOLVER = FakeResolver({"metadata.test": ["169.254.169.254"]})


@pytest.fixture
async def registry(store: Store) -> AsyncIterator[Registry]:
    clock = FakeClock()
    async with checked_session(RESOLVER) as session:
        examiner = Examiner(
            probe=probe,
            check_health=HttpHealthCheck(session),
            discover=NameDiscovery(CheckedResolver(RESOLVER)),
            transport=lambda address: CheckedTransport(RESOLVER, address),
            clock=clock,
        )
        yield Registry(store=store, examiner=examiner, clock=clock, owner="test")


async def test_a_server_of_web_pages_is_kept_as_down_with_the_evidence(registry: Registry) -> None:
    async with model_list_server(body="<html>welcome</html>") as server:
        added = (await registry.add(declared(name="web", url=server.url))).whole
        await registry.check_health_once()
    assert added.state is BackendState.DOWN
    assert "welcome" in added.findings[Capability.MODELS].evidence
    assert added.supports(Capability.MODELS) is Support.NO


async def test_a_server_of_another_kind_than_declared_is_kept_as_down(registry: Registry) -> None:
    async with model_list_server() as server:
        added = (await registry.add(declared(name="other", url=server.url, kind="embedded"))).whole
    assert (added.state, added.kind) == (BackendState.DOWN, EngineKind.OPENAI)
    assert "declared embedded" in added.state_reason


async def test_a_server_that_goes_away_is_down_and_up_again_once_it_is_back(registry: Registry) -> None:
    async with model_list_server() as server:
        assert (await registry.add(declared(name="a", url=server.url))).whole.state is BackendState.UP
        await server.stop()
        await registry.check_health_once()
        assert registry.get("a").whole.state is BackendState.DOWN
        assert "no connection" in registry.get("a").whole.state_reason
        await server.start()
        await registry.check_health_once()
        assert registry.get("a").whole.state is BackendState.UP


async def test_a_key_that_is_changed_at_the_server_and_here_is_noticed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", "first-key")
    async with model_list_server(key="first-key") as server:
        added = (await registry.add(declared(name="a", url=server.url, credential="env:GPU_KEY"))).whole
        assert added.state is BackendState.UP
        server.key = "second-key"
        await registry.check_health_once()
        assert registry.get("a").whole.state_reason.startswith("unauthorised")
        monkeypatch.setenv("GPU_KEY", "second-key")
        await registry.check_health_once()
        assert registry.get("a").whole.state is BackendState.UP


async def test_a_name_that_resolves_to_metadata_is_kept_as_down_and_never_connected_to(
    registry: Registry,
) -> None:
    added = (await registry.add(declared(name="a", url="http://metadata.test:8000"))).whole
    assert added.state is BackendState.DOWN
    assert "never connected to" in added.state_reason
    await registry.check_health_once()
    assert "never connected to" in registry.get("a").whole.state_reason


def test_every_suite_has_an_engine_kind() -> None:
    assert set(SUITES) == {kind.value for kind in EngineKind}
