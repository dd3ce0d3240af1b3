"""A built wheel, installed into an empty environment outside the clone, serves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parent.parent
PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and what it depends on, nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, *build], check=True, cwd=folder)
    (wheel,) = folder.glob("ace_gateway-*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    install = [*PIP, "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run([python, *install], check=True, cwd=folder)
    return folder / "env"


@pytest.fixture
def gateway(environment: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a gateway that runs from the wheel, with the policy that `ace init` writes."""
    ace = environment / "bin" / "ace"
    subprocess.run([ace, "init", "policy.yaml"], check=True, cwd=tmp_path)
    command = [str(ace), "serve", "--port", "0", "--data", "data", "--policy", "policy.yaml"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ACE_")}
    with subprocess.Popen(command, cwd=tmp_path, env=clean, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(
            found.group(1) for line in process.stderr if (found := re.search(r"(http://\S+)/v1$", line))
        )
        # The address is printed just before it is listened on.
        with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=6)) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        process.communicate()


def test_a_gateway_from_the_wheel_is_ready(gateway: httpx.Client) -> None:
    assert gateway.get("/readyz").json()["ready"] is True


def test_a_gateway_from_the_wheel_answers_in_openais_shape(gateway: httpx.Client) -> None:
    assert gateway.get("/v1/models").json() == {"object": "list", "data": []}


def test_the_wheel_brings_no_torch(environment: Path) -> None:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    assert subprocess.run([environment / "bin" / "python", "-c", code], check=False).returncode == 0


def test_the_wheel_holds_the_demos_draft_model_with_its_card(environment: Path) -> None:
    code = (
        "from importlib.resources import files; folder = files('draftrunner') / 'demo_draft'; "
        "print(*sorted(file.name for file in folder.iterdir())); "
        "print(sum(len(file.read_bytes()) for file in folder.iterdir()))"
    )
    run = subprocess.run(
        [environment / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    )
    names, size = run.stdout.splitlines()
    assert {"README.md", "config.json", "model.safetensors"} <= set(names.split())
    assert int(size) <= 20 * 2**20
