from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from draftrunner import service
from draftrunner.__main__ import main
from draftrunner.drafters import DRAFTERS
from tests.fakes.joinable import JoinableGateway
from tests.fakes.served import served


def complaint(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said, and that it is no success, when the command does not start."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code != 0
    return f"{ended.value.code} {capsys.readouterr().err}"


@pytest.fixture(autouse=True)
def no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACE_RUNNER_TOKEN", raising=False)


@pytest.fixture
def token_used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tokens that the service was started with, in place of starting it."""
    tokens: list[str] = []
    monkeypatch.setattr(service, "run", lambda **started: tokens.append(started["token"]))
    return tokens


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, token_used: list[str]) -> None:
    monkeypatch.setenv("ACE_RUNNER_TOKEN", "from-environment")
    main(["draft-runner"])
    assert token_used == ["from-environment"]


def test_a_token_file_that_is_named_wins(
    monkeypatch: pytest.MonkeyPatch, token_used: list[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("ACE_RUNNER_TOKEN", "from-environment")
    file = tmp_path / "runner.token"
    file.write_text("from-file\n")
    main(["draft-runner", "--token-file", str(file)])
    assert token_used == ["from-file"]


def test_without_a_token_it_says_where_one_is_taken_from(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(["draft-runner"], capsys)
    assert "ace draft-runner: no runner token in ACE_RUNNER_TOKEN" in said
    assert "--token-file" in said


def test_a_token_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "none"
    said = complaint(["draft-runner", "--token-file", str(file)], capsys)
    assert f"cannot read the runner token from {file}: No such file or directory" in said


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\n", "no runner token in"),
        (b"two words", "other than visible ASCII"),
        (b"\xff\x00", "other than visible"),
    ],
)
def test_a_file_without_a_usable_token_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, reason: str
) -> None:
    file = tmp_path / "runner.token"
    file.write_bytes(content)
    assert reason in complaint(["draft-runner", "--token-file", str(file)], capsys)


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert f"'{port}' is not a port" in complaint(["draft-runner", f"--port={port}"], capsys)


@pytest.mark.parametrize("gateway", ["localhost:8080", "ftp://gateway", "http://", "http://[::1"])
def test_a_gateway_that_is_no_url_is_refused(capsys: pytest.CaptureFixture[str], gateway: str) -> None:
    assert f"'{gateway}' is not a URL" in complaint(["draft-runner", "--gateway", gateway], capsys)


def test_a_port_in_use_is_said_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACE_RUNNER_TOKEN", "sesame")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = complaint(["draft-runner", "--port", str(port)], capsys)
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in said


def test_a_started_runner_joins_its_gateway_with_a_url_that_answers() -> None:
    gateway = JoinableGateway()
    with served(gateway) as gateway_url:
        process = subprocess.Popen(
            [sys.executable, "-m", "draftrunner", "draft-runner", "--port", "0", "--gateway", gateway_url],
            env={**os.environ, "ACE_RUNNER_TOKEN": "sesame"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            join = gateway.joins.get(timeout=60)
            headers = {"authorization": "Bearer sesame"}
            info = httpx.get(
                f"{join.body['url']}/v1/info", headers=headers, trust_env=False, timeout=60
            ).json()
        finally:
            process.send_signal(signal.SIGINT)
            _, log = process.communicate()
    assert join.authorization == "Bearer sesame"
    assert join.body["node"] == socket.gethostname()
    assert join.body["drafters"] == info["drafters"] == sorted(DRAFTERS)
    assert join.body["version"] == info["version"]
    assert f"draft runner listening on {join.body['url']}" in log
    assert "accepted this runner" in log
    assert "Traceback" not in log, "Ctrl-C ends it quietly"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_draft_runner_loads_no_torch() -> None:
    code = "import sys, draftrunner.__main__, draftrunner.service; sys.exit('torch' in sys.modules)"
    assert run_python(code).returncode == 0


def test_without_torch_the_embedded_backend_says_what_to_install() -> None:
    hide = "import sys; sys.modules.update(torch=None, transformers=None); "
    ended = run_python(hide + "from draftrunner.__main__ import main; main(['embedded-backend'])")
    assert ended.returncode == 1
    message = r"ace embedded-backend: \w+ is not installed\. Run: pip install 'ace-gateway\[draft\]'\n"
    assert re.fullmatch(message, ended.stderr)


def test_the_embedded_backend_is_started_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, object]] = []
    server = types.ModuleType("draftrunner.embedded.server")
    server.run = lambda **asked: started.append(asked)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, server.__name__, server)
    main(["embedded-backend"])
    main(
        [
            "embedded-backend",
            "--host=::1",
            "--port=0",
            "--model=/m",
            "--dtype=float32",
            "--served-model-name=x",
        ]
    )
    defaults, given = started
    assert defaults == {
        "host": "127.0.0.1",
        "port": 8100,
        "model": "demo",
        "dtype": "bfloat16",
        "served_model_name": None,
        "draft_model": None,
    }
    assert given == {
        "host": "::1",
        "port": 0,
        "model": "/m",
        "dtype": "float32",
        "served_model_name": "x",
        "draft_model": None,
    }


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What draft models were asked for, in place of loading them."""
    asked: list[dict[str, object]] = []
    loading = types.ModuleType("draftrunner.drafters.loading")
    loading.load_draft_model = lambda model, **how: asked.append({"model": model, **how}) or "loaded"  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, loading.__name__, loading)
    return asked


def test_the_draft_runner_drafts_with_the_model_asked_for(
    monkeypatch: pytest.MonkeyPatch, loads: list[dict[str, object]]
) -> None:
    monkeypatch.setenv("ACE_RUNNER_TOKEN", "sesame")
    started: list[object] = []
    monkeypatch.setattr(service, "run", lambda **asked: started.append(asked["draft_model"]))
    main(["draft-runner"])
    main(["draft-runner", "--draft-model=demo"])
    main(["draft-runner", "--draft-model=/m", "--device=cuda", "--draft-memory=1.5"])
    assert started == [None, "loaded", "loaded"]
    assert loads == [
        {"model": "demo", "device": "auto", "memory_gib": 4.0},
        {"model": "/m", "device": "cuda", "memory_gib": 1.5},
    ]


def test_the_embedded_backend_drafts_beside_its_target(
    monkeypatch: pytest.MonkeyPatch, loads: list[dict[str, object]]
) -> None:
    started: list[object] = []
    server = types.ModuleType("draftrunner.embedded.server")
    server.run = lambda **asked: started.append(asked["draft_model"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, server.__name__, server)
    main(["embedded-backend", "--draft-model=demo"])
    assert started == ["loaded"]
    assert loads == [{"model": "demo", "device": "cpu", "memory_gib": 4.0}]


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf", "much"])
def test_a_memory_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], size: str) -> None:
    said = complaint(["draft-runner", f"--draft-memory={size}"], capsys)
    assert f"'{size}' is not a number of gibibytes above 0" in said


def test_without_torch_a_draft_model_says_what_to_install() -> None:
    hide = "import sys, os; sys.modules.update(torch=None, transformers=None); "
    token = "os.environ['ACE_RUNNER_TOKEN'] = 'sesame'; "
    ended = run_python(
        f"{hide}{token}from draftrunner.__main__ import main; main(['draft-runner', '--draft-model=demo'])"
    )
    assert ended.returncode == 1
    assert re.search(r"ace draft-runner: \w+ is not installed\. Run: pip install", ended.stderr)
