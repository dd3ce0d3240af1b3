"""What can be shown of the images without building them: their steps, one by one, on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest

from tests.fakes.processes import until

pytestmark = [pytest.mark.ops, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
UID = 10001
TOKEN = "ace-admin-token-of-the-image"
READ_ONLY = """
set -eu
mount --make-rprivate /
# The interpreter may lie in a home that nobody else may enter, as no image's does.
case "$BASE" in /root/*)
  mount --bind "$BASE" /mnt
  mount -t tmpfs -o mode=755 none /root
  mkdir -p "$BASE"
  mount --bind /mnt "$BASE"
esac
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o "mode=700,uid=$RUN_AS,gid=$RUN_AS" none "$DATA"
mount -o remount,bind,ro /
cd /
exec setpriv --reuid "$RUN_AS" --regid "$RUN_AS" --clear-groups --no-new-privs --bounding-set=-all env -i "$@"
"""
"""Runs a command as the image's user, the root file system read-only but for what the image declares."""


@dataclass(frozen=True, slots=True)
class Image:
    """The last stage of a Dockerfile, one instruction a line."""

    text: str

    def given(self, instruction: str) -> str:
        """What follows an instruction."""
        (found,) = re.findall(rf"^{instruction} (.*)$", self.text, re.M)
        return str(found)

    def items(self, instruction: str) -> list[str]:
        """The list at an instruction's end."""
        given = self.given(instruction)
        return [str(item) for item in json.loads(given[given.index("[") :])]

    @property
    def env(self) -> dict[str, str]:
        """Its variables."""
        pairs = (pair.partition("=") for pair in shlex.split(self.given("ENV")))
        return {name: value for name, _, value in pairs}


def image(name: str) -> Image:
    """The image of `docker/NAME.Dockerfile`."""
    text = (ROOT / "docker" / f"{name}.Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return Image(re.split(r"^FROM .*$", text, flags=re.M)[-1])


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that every user may enter, and that is not in /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ace-image-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def context(place: Path) -> Path:
    """What `docker build` would send: the repository, as .dockerignore lets it through."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    dropped = shutil.ignore_patterns(*(line.rpartition("/")[2] for line in lines if line.startswith("**/")))
    for name in kept:
        source, target = ROOT / name, place / "context" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target, ignore=dropped) if source.is_dir() else shutil.copy(source, target)
    return place / "context"


@pytest.fixture(scope="module")
def installed(place: Path, context: Path) -> Path:
    """An environment made by the steps of the gateway's build stage."""
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place / "wheels"), "."]
    subprocess.run([sys.executable, *build], check=True, cwd=context)
    venv.create(place / "ace", with_pip=True)
    python = place / "ace" / "bin" / "python"
    (wheel,) = (place / "wheels").glob("*.whl")
    install = [*pip, "install", "--constraint", str(context / "constraints.txt"), f"{wheel}[postgres]"]
    subprocess.run([python, *install], check=True, cwd=context)
    return place / "ace"


def free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def answers(url: str) -> bool:
    """Whether anything answers there with success."""
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("name", ["gateway", "draft-runner"])
def test_an_image_runs_as_a_number_and_says_what_it_writes_to(name: str) -> None:
    assert image(name).given("USER") == f"{UID}:{UID}"
    assert "/tmp" in image(name).items("VOLUME")
    assert image(name).items("ENTRYPOINT") == ["ace"]
    assert image(name).env["PYTHONDONTWRITEBYTECODE"] == "1"


@pytest.mark.parametrize("file", sorted((ROOT / "docker").glob("*.Dockerfile")), ids=lambda file: file.stem)
def test_images_are_based_on_public_names_and_name_no_package_index(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    bases = re.findall(r"^ARG \w+_IMAGE=(\S+)$", text, re.M)
    assert bases
    allowed = ("python:3.1*", "nvidia/cuda:*")
    assert all(any(fnmatch(base, pattern) for pattern in allowed) for base in bases)
    assert not re.search(r"https?://(?!127\.0\.0\.1)", text)


def test_the_gateways_environment_has_no_torch(installed: Path) -> None:
    packages = {path.name for path in (installed / "lib").glob("python*/site-packages/*")}
    assert "gateway" in packages
    assert not {"torch", "transformers", "tests"} & packages


@contextmanager
def contained(command: Sequence[str], env: Mapping[str, str], folder: Path, data: str) -> Iterator[int]:
    """Run a command as a container would; gives its process id, outside of its namespace.

    Args:
        command: As process 1, as in a container: signals that it does not handle are lost on it.
        env: All of its environment.
        folder: Gets a log and the folder for its data.
        data: That folder's variable.
    """
    (folder / "data").mkdir(exist_ok=True)
    inside = {**os.environ, "BASE": sys.base_prefix, "DATA": str(folder / "data"), "RUN_AS": str(UID)}
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    variables = [f"{name}={value}" for name, value in {**env, data: str(folder / "data")}.items()]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*namespaces, "sh", "-c", READ_ONLY, "sh", *variables, *command],
            env=inside,
            stdout=log,
            stderr=log,
        )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        yield int(until(lambda: children.read_text().split(), "process 1")[0])
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def is_healthy(image: Image, env: Mapping[str, str]) -> bool:
    """What the image's health check says."""
    check = image.items("HEALTHCHECK")
    return subprocess.run([sys.executable, *check[1:]], env=env, check=False).returncode == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a container's namespaces")


@needs_root
def test_the_gateway_runs_read_only_as_a_user_without_a_home(installed: Path, place: Path) -> None:
    gateway, (port, operations) = image("gateway"), free_ports()
    assert set(gateway.items("VOLUME")) == {gateway.env["ACE_DATA_DIR"], "/tmp"}
    env = gateway.env | {
        "PATH": f"{installed}/bin:/usr/bin:/bin",
        "ACE_PORT": str(port),
        "ACE_OPERATIONS_PORT": str(operations),
        "ACE_ADMIN_TOKEN": TOKEN,
        "ACE_WORKERS": "2",
    }
    command = [*gateway.items("ENTRYPOINT"), *gateway.items("CMD")]
    with contained(command, env, place, "ACE_DATA_DIR") as pid:
        until(lambda: answers(f"http://127.0.0.1:{operations}/readyz"), "readiness", 60)
        assert is_healthy(gateway, env)
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).status_code == 401
        admin, made = {"authorization": f"Bearer {TOKEN}"}, {"name": "k", "tenant": "t"}
        keys = f"http://127.0.0.1:{port}/admin/v1/keys"
        assert httpx.post(keys, json=made, headers=admin, trust_env=False).is_success
        os.kill(pid, signal.SIGTERM)


@needs_root
def test_a_draft_runner_without_a_model_runs_read_only_too(installed: Path, place: Path) -> None:
    runner, (port, _) = image("draft-runner"), free_ports()
    assert set(runner.items("VOLUME")) == {runner.env["XDG_CACHE_HOME"], "/tmp"}
    env = runner.env | {
        "PATH": f"{installed}/bin:/usr/bin:/bin",
        "ACE_RUNNER_TOKEN": TOKEN,
        "HEALTH_URL": runner.env["HEALTH_URL"].replace("8090", str(port)),
    }
    command = [*runner.items("ENTRYPOINT"), *runner.items("CMD"), "--port", str(port)]
    with contained(command, env, place, "XDG_CACHE_HOME") as pid:
        until(lambda: is_healthy(runner, env), "health", 60)
        os.kill(pid, signal.SIGTERM)
