import httpx

from tests.fakes.balancer import balanced
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served


def test_connections_go_to_the_servers_in_turns() -> None:
    one, two = (OpenAIServer(version={"version": version}) for version in ("1", "2"))
    with served(one.app) as first, served(two.app) as second, balanced(first, second) as balancer:
        seen = [httpx.get(f"{balancer.url}/version").json()["version"] for _ in range(4)]
        balancer.ports = balancer.ports[:1]
        seen += [httpx.get(f"{balancer.url}/version").json()["version"] for _ in range(2)]
    assert seen == ["1", "2", "1", "2", "1", "1"]
