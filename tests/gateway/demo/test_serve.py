import json
import shlex
from pathlib import Path

import pytest

from gateway.demo.serve import how_to_use
from gateway.demo.stack import Stack, Urls


def shown(gateway: str = "http://127.0.0.1:8080") -> str:
    urls = Urls(gateway, "http://127.0.0.1:8100", "http://127.0.0.1:8090")
    stack = Stack(urls=urls, admin_token="ace-admin-made-up", processes=())
    return how_to_use(stack, policy=Path("/tmp/x/policy.yaml"), model="m1")


def test_every_url_and_the_policy_file_are_shown() -> None:
    for text in ("8080/v1", "8080/docs", "8080/metrics", ":8100/v1", ":8090", "/tmp/x/policy.yaml"):
        assert text in shown()


@pytest.mark.parametrize(
    ("gateway", "named"), [("http://127.0.0.1:8080", False), ("http://127.0.0.1:4321", True)]
)
def test_the_gateway_is_exported_only_where_commands_would_not_find_it(gateway: str, named: bool) -> None:
    assert "export ACE_TOKEN=ace-admin-made-up\n" in shown(gateway)
    assert (f"export ACE_GATEWAY_URL={gateway}" in shown(gateway)) is named


def test_the_curl_line_is_one_shell_command_with_a_json_body() -> None:
    text = shown()
    command = text[text.index("curl") : text.index("and see")]

    words = shlex.split(command)

    assert words[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "m1"
    assert body["messages"][0]["content"].startswith("Rename x to total")
