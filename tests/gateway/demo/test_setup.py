from typing import Any

import pytest

from gateway.cli.client import GatewayClient
from gateway.demo.failure import DemoFailed
from gateway.demo.setup import refuse_missing, register_backend, runner_joined
from tests.fakes.clock import FakeClock


class Rest(GatewayClient):
    """A gateway that answers from lists; the last entry is repeated."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.posted: list[tuple[str, object]] = []

    def get(self, path: str, **params: object) -> Any:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def post(self, path: str, body: object = None, *, time_limit_s: float = 1.0) -> Any:
        self.posted.append((path, body))
        return self.get(path)


def test_a_missing_package_is_named_with_what_installs_it() -> None:
    with pytest.raises(DemoFailed, match=r"needs .*no_such_package.*pip install 'ace-gateway\[demo\]'"):
        refuse_missing("no_such_package")


def test_the_backend_is_registered_by_url() -> None:
    rest = Rest({"state": "up", "models": ["m1"]})

    assert register_backend(rest, "http://127.0.0.1:8100")["models"] == ["m1"]
    assert rest.posted == [
        ("/admin/v1/backends", {"name": "embedded", "url": "http://127.0.0.1:8100", "kind": "auto"})
    ]


def test_a_backend_that_is_down_ends_the_demo_with_its_reason() -> None:
    with pytest.raises(DemoFailed, match="is down: nobody answers"):
        register_backend(Rest({"state": "down", "state_reason": "nobody answers"}), "http://127.0.0.1:1")


def test_a_runner_is_waited_for() -> None:
    clock = FakeClock()

    assert runner_joined(Rest({"runners": []}, {"runners": []}, {"runners": [{}]}), clock, clock.advance)


def test_the_wait_for_a_runner_ends() -> None:
    clock = FakeClock()

    assert not runner_joined(Rest({"runners": []}), clock, clock.advance)
