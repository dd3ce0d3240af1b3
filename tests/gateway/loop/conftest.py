"""A data plane whose every decision is a loop, between a byte target and a scripted draft runner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.loop import runner as runner_module
from gateway.policy.model import Decision
from tests.fakes.byte_target import ByteTarget, ids_of
from tests.fakes.loop_runner import LoopRunner
from tests.fakes.served import served
from tests.gateway.loop.harness import Loop, decide_on_loops
from tests.gateway.proxy.harness import Gateway, backend_at


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No runner is given up because this machine is busy."""
    monkeypatch.setattr(runner_module, "CONNECT_S", 30.0)
    monkeypatch.setattr(runner_module, "FRAME_S", 30.0)


@pytest.fixture(scope="session")
def byte_target() -> Iterator[tuple[ByteTarget, str]]:
    target = ByteTarget()
    with served(target.app) as url:
        yield target, url


@pytest.fixture
def target(byte_target: tuple[ByteTarget, str]) -> ByteTarget:
    byte_target[0].reset(ids_of("one two one two"))
    return byte_target[0]


@pytest.fixture(scope="session")
def loop_runner() -> Iterator[LoopRunner]:
    with LoopRunner() as runner:
        yield runner


@pytest.fixture
def runner(loop_runner: LoopRunner) -> LoopRunner:
    loop_runner.reset(lambda answer, k: ())
    return loop_runner


@pytest.fixture(params=["fanout", "scored"])
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch, strategy: str) -> Decision:
    """Every request is speculated in a loop."""
    return decide_on_loops(monkeypatch, strategy)


@pytest.fixture
def loop(
    byte_target: tuple[ByteTarget, str], target: ByteTarget, runner: LoopRunner, decided: Decision
) -> Iterator[Loop]:
    url = byte_target[1]
    with Gateway([backend_at(url, findings={})], runners=[runner]) as gateway:
        yield Loop(gateway, int(url.rpartition(":")[2]))
