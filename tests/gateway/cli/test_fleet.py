import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace

TEXT = """\
version: 1
backends:
  - {name: solo, url: "http://gpu-1:8000/v1"}
  - {name: pods, url: "http://llama.svc:8000", discovery: dns, kind: vllm}
"""
NOTHING: dict[str, Any] = {"added": [], "changed": [], "removed": [], "refused": []}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(TEXT)
    return path


def test_check_needs_no_gateway_and_says_what_is_declared(ace: Ace, file: Path) -> None:
    result = ace("fleet", "check", str(file))
    assert result.exit_code == 0
    first, *rest = result.stdout.splitlines()
    assert first.startswith(f"{file}: valid, 2 backends, revision ")
    assert rest == [
        "  solo: http://gpu-1:8000, kind auto",
        "  pods: every address of http://llama.svc:8000, kind vllm",
    ]


@pytest.mark.parametrize("command", ["check", "diff"])
def test_a_bad_file_is_refused_with_file_and_line_before_anybody_is_asked(
    ace: Ace, file: Path, command: str
) -> None:
    file.write_text("version: 1\nbackend: []\n")
    result = ace("fleet", command, str(file))
    assert result.exit_code == 1
    assert f"{file}:2: backend is not a known key. Did you mean 'backends'?" in result.stderr


def test_diff_sends_what_the_file_declares(ace: Ace, rest: RestGateway, file: Path) -> None:
    rest.answers = [(200, NOTHING)]
    result = ace("fleet", "diff", str(file), "--gateway", rest.url)
    assert (result.exit_code, result.stdout) == (0, "Nothing would change.\n")
    (asked,) = rest.asked
    assert (asked.method, asked.path) == ("POST", "/admin/v1/fleet/diff")
    assert asked.body == {
        "version": 1,
        "backends": [
            {
                "name": "solo",
                "urls": ["http://gpu-1:8000"],
                "discovery": "none",
                "kind": "auto",
                "credential": None,
                "tokenizer": None,
            },
            {
                "name": "pods",
                "urls": ["http://llama.svc:8000"],
                "discovery": "dns",
                "kind": "vllm",
                "credential": None,
                "tokenizer": None,
            },
        ],
    }


def test_a_difference_is_shown_and_ends_with_status_2(ace: Ace, rest: RestGateway, file: Path) -> None:
    found = {
        "added": ["pods"],
        "changed": [{"name": "solo", "fields": {"urls": [["http://a"], ["http://b", "http://c"]]}}],
        "removed": ["old"],
        "refused": ["backend 'x' is registered by hand already."],
    }
    rest.answers = [(200, found), (200, found)]
    result = ace("fleet", "diff", str(file), "--gateway", rest.url)
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        "+ pods",
        "~ solo  urls: http://a -> http://b, http://c",
        "- old",
        "! backend 'x' is registered by hand already.",
    ]
    as_json = ace("fleet", "diff", str(file), "--json", "--gateway", rest.url)
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (2, found)
