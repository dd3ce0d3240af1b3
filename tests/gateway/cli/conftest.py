"""The command line as a person types it, against a scripted gateway."""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from gateway.__main__ import main
from tests.fakes.rest_gateway import RestGateway, rest_gateway

Ace = Callable[..., Result]


@pytest.fixture
def ace(monkeypatch: pytest.MonkeyPatch) -> Ace:
    """Runs `ace` with these arguments; the environment holds no ACE_* variable but those given."""
    for name in ("ACE_GATEWAY_URL", "ACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str, **env: str) -> Result:
        return CliRunner().invoke(main, args, env=env)

    return run


@pytest.fixture
def rest() -> Iterator[RestGateway]:
    """A gateway's scripted REST API."""
    with rest_gateway() as gateway:
        yield gateway
