"""A loop's calls all go to the instance that its request was given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.policy.model import Decision
from tests.fakes.byte_target import ByteTarget, ids_of
from tests.fakes.loop_runner import LoopRunner
from tests.fakes.served import served
from tests.gateway.loop.harness import Loop, right_by
from tests.gateway.proxy.harness import Gateway, backend_at


@pytest.fixture
def others() -> Iterator[tuple[ByteTarget, str]]:
    """A second instance that says the same."""
    target = ByteTarget()
    target.reset(ids_of("one two one two"))
    with served(target.app) as url:
        yield target, url


def test_a_request_and_all_calls_of_its_loop_stay_on_one_instance(
    byte_target: tuple[ByteTarget, str],
    target: ByteTarget,
    others: tuple[ByteTarget, str],
    runner: LoopRunner,
    decided: Decision,
) -> None:
    first, second = byte_target[1], others[1]
    runner.reset(right_by(target.answer, [3, 0, 2]))
    backends = [backend_at(url, findings={}, instance=url) for url in (first, second)]
    with Gateway(backends, runners=[runner]) as gateway:
        loop = Loop(gateway, int(first.rpartition(":")[2]))
        for _ in range(6):
            before = [len(server.asked) for server in (target, others[0])]
            assert loop.through(stream=True).text == "one two one two"
            after = [len(server.asked) for server in (target, others[0])]
            asked = [now - then for now, then in zip(after, before, strict=True)]
            assert sorted(count > 3 for count in asked) == [False, True]
            assert 0 in asked
