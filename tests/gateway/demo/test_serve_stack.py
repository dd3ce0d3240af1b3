"""`make serve` with its real parts."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.model, pytest.mark.slow]
PATIENCE_S = 300


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The running command, and what it has printed."""
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "demo", "--serve"],
            stdout=output,
            stderr=output,
            preexec_fn=_with_ctrl_c,
        )
    try:
        yield process, _printed(process, log)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _with_ctrl_c() -> None:
    """A shell that starts tests in the background has them ignore it, and their children too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _printed(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while "Ctrl-C ends" not in (text := log.read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
    return text


def test_the_curl_line_is_answered_and_leaves_a_record(serving: tuple[subprocess.Popen[bytes], str]) -> None:
    _, text = serving
    words = shlex.split(text[text.index("curl") : text.index("and see")])
    headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    (token,) = re.findall(r"export ACE_TOKEN=(\S+)", text)
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        answer = http.post(words[1], content=words[words.index("-d") + 1], headers=headers)
        stages = words[1].replace("/v1/chat/completions", "/admin/v1/stages")
        deadline = time.monotonic() + PATIENCE_S
        while not (found := http.get(stages, headers={"authorization": f"Bearer {token}"}).json()["stages"]):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    assert json.loads(answer.content)["choices"][0]["message"]["content"]
    assert found[0]["rule"] == "copies-its-input"
    assert found[0]["mode"] == "prod"


def test_ctrl_c_ends_every_part(serving: tuple[subprocess.Popen[bytes], str]) -> None:
    process, text = serving

    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_S)

    for url in set(re.findall(r"http://127\.0\.0\.1:\d+", text)):
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, trust_env=False)
