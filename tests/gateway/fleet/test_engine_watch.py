"""Engines' own numbers, read over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from gateway.evidence.engine_blocks import EngineBlock
from gateway.fleet.engine_watch import EngineWatch
from gateway.fleet.health import checked_session
from gateway.fleet.load import Load
from gateway.fleet.model import Backend, BackendState, FleetSnapshot
from probes.model import Capability, Finding, Support
from tests.fakes.clock import FakeClock
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served


@dataclass
class Watched:
    watch: EngineWatch
    load: Load
    clock: FakeClock
    blocks: list[EngineBlock] = field(default_factory=list)


def backend_at(url: str, *, gauge: Support = Support.YES, credential: str | None = None) -> Backend:
    finding = Finding(capability=Capability.LOAD_GAUGE, support=gauge, evidence="")
    return Backend(
        name="b",
        url=url,
        state=BackendState.UP,
        credential=credential,
        findings={Capability.LOAD_GAUGE: finding},
    )


@asynccontextmanager
async def watching(backend: Backend) -> AsyncIterator[Watched]:
    clock, blocks = FakeClock(960.0), list[EngineBlock]()
    load = Load(clock)
    async with checked_session() as session:
        watch = EngineWatch(
            session=session,
            fleet=lambda: FleetSnapshot((backend,)),
            load=load,
            block_lengths=lambda: frozenset({60.0}),
            keep=blocks.extend,
            clock=clock,
        )
        yield Watched(watch, load, clock, blocks)


async def test_what_the_gauge_shows_beyond_our_own_requests_is_of_others() -> None:
    server = OpenAIServer(running=5)
    with served(server.app) as url:
        async with watching(backend_at(url)) as parts:
            parts.load.place().move("b", sequences=2)
            await parts.watch.look_once()
            assert (parts.load.running("b"), parts.load.source("b")) == (1 + 3, "engine")
            server.running = 1
            await parts.watch.look_once()
            assert parts.load.running("b") == 1


async def test_the_tokens_of_a_block_are_kept_when_it_has_ended() -> None:
    server = OpenAIServer(running=1)
    with served(server.app) as url:
        async with watching(backend_at(url)) as parts:
            for _ in range(8):
                await parts.watch.look_once()
                server.generated += 50
                parts.clock.advance(9)
    (block,) = parts.blocks
    assert (block.tokens, block.busy_seconds) == (300, 54)


@pytest.mark.parametrize("gauge", [Support.NO, Support.UNKNOWN])
async def test_a_server_whose_gauge_no_probe_has_read_is_never_asked(gauge: Support) -> None:
    """One engine empties what it answers there; another process may be living off that."""
    server = OpenAIServer(running=5, key="sk-other")
    with served(server.app) as url:
        async with watching(backend_at(url, gauge=gauge)) as parts:
            await parts.watch.look_once()
    assert parts.load.source("b") == "gateway"


@pytest.mark.parametrize(
    "server",
    [
        OpenAIServer(answers={"/metrics": (500, "{}")}),
        OpenAIServer(answers={"/metrics": (200, "[]")}),
        OpenAIServer(answers={"/metrics": (200, "x" * (9 * 2**20))}),
        OpenAIServer(key="sk-other", running=5),
    ],
    ids=["fails", "no gauge any more", "endless", "wants a key"],
)
async def test_an_engine_that_does_not_say_leaves_our_own_count(server: OpenAIServer) -> None:
    with served(server.app) as url:
        async with watching(backend_at(url)) as parts:
            await parts.watch.look_once()
            assert (parts.load.running("b"), parts.load.source("b")) == (0, "gateway")


async def test_numbers_that_are_nobodys_are_not_read() -> None:
    """Through a URL of several processes each look would show another one's."""
    several = Finding(capability=Capability.SINGLE_PROCESS, support=Support.NO, evidence="")
    server = OpenAIServer(running=5)
    with served(server.app) as url:
        backend = backend_at(url)
        findings = {**backend.findings, Capability.SINGLE_PROCESS: several}
        async with watching(replace(backend, findings=findings)) as parts:
            await parts.watch.look_once()
            assert parts.load.source("b") == "gateway"


async def test_an_instance_is_asked_at_its_own_address_under_the_backends_name() -> None:
    server = OpenAIServer(running=2)
    with served(server.app) as url:
        port = url.rpartition(":")[2]
        named = backend_at(f"http://headless.test:{port}")
        async with watching(replace(named, instance="127.0.0.1", address="127.0.0.1")) as parts:
            await parts.watch.look_once()
            assert (parts.load.running("b@127.0.0.1"), parts.load.running("b")) == (2, 0)


async def test_an_engine_that_is_away_leaves_our_own_count() -> None:
    async with watching(backend_at("http://127.0.0.1:9")) as parts:
        await parts.watch.look_once()
    assert parts.load.source("b") == "gateway"


async def test_the_backends_own_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND_KEY", "sk-backend")
    server = OpenAIServer(running=2, key="sk-backend")
    with served(server.app) as url:
        async with watching(backend_at(url, credential="env:BACKEND_KEY")) as parts:
            await parts.watch.look_once()
            assert parts.load.running("b") == 2
