from __future__ import annotations

import json

import pytest

from probes.__main__ import main
from probes.model import Capability
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served


def test_findings_are_printed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with served(OpenAIServer().without("logprobs").app) as url:
        assert main([f"{url}/v1/"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "openai server, up"
    assert "no      logprobs" in "\n".join(printed)
    # The first line is the server; and no suite asks for single_process.
    assert len(printed) == len(Capability)


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with served(OpenAIServer().app) as url:
        assert main([url, "--kind", "openai", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["kind"], printed["up"], printed["models"]) == ("openai", True, ["m"])
    assert printed["findings"][1] == {
        "capability": "context_length",
        "support": "yes",
        "evidence": "/v1/models says max_model_len = 4096",
        "value": 4096,
    }


def test_a_server_that_is_down_fails_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with served(OpenAIServer(answers={"/v1/models": (200, "<html>")}).app) as url:
        assert main([url]) == 1
    assert capsys.readouterr().out.startswith("openai server, down: it is no OpenAI-compatible server")


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://me:secret@host", "http://[::"]
)
def test_what_is_no_base_url_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([url])
    assert exit_.value.code == 2
    assert "secret" not in capsys.readouterr().err
