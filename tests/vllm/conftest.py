"""A stock vLLM on this machine, a gateway in front of it, and a record of every byte that passes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tests.fakes.byte_tap import ByteTap
from tests.fakes.processes import PATIENCE_S, Front, Part

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
STARTING_S = 900.0
"""It compiles its kernels at its first start, on every core there is."""

POLICY = """
version: 1
rules:
  - {name: everything, mode: shadow, draft: ngram}
"""


@dataclass(frozen=True)
class Plain:
    """A stock server behind a gateway that knows it as any OpenAI-compatible server.

    Attributes:
        url: The server's own address.
        to_gateway: What clients send.
        to_server: What reaches the server.
    """

    url: str
    model: str
    front: Front
    client: openai.OpenAI
    to_gateway: ByteTap
    to_server: ByteTap


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model as an ordinary checkpoint."""
    from draftrunner.weights import find_checkpoint

    return find_checkpoint("demo").folder


@pytest.fixture(scope="session")
def vllm(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """The server, with no flag but the block size that its CPU build insists on."""
    if not PYTHON.exists():
        pytest.skip("there is no vLLM here; `make test-vllm` installs one")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = Part(
        "vllm.entrypoints.openai.api_server",
        ("--model", str(demo_folder), "--host", "127.0.0.1", "--block-size", "32"),
        tmp_path_factory.mktemp("vllm") / "vllm.log",
        {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        python=str(PYTHON),
        port=port,
        patience_s=STARTING_S,
    )
    with server:
        yield server


@pytest.fixture(scope="module")
def plain(vllm: Part, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """The stock server in mode shadow, registered by its address alone."""
    with (
        ByteTap(int(vllm.url.rpartition(":")[2])) as to_server,
        Front(tmp_path_factory.mktemp("front"), policy=POLICY) as front,
        ByteTap(int(front.gateway.url.rpartition(":")[2])) as to_gateway,
        openai.OpenAI(
            base_url=f"{to_gateway.url}/v1", api_key=front.key("demo"), max_retries=0, timeout=PATIENCE_S
        ) as client,
    ):
        (model,) = front.register("plain", to_server.url, kind="openai")["models"]
        yield Plain(vllm.url, model, front, client, to_gateway, to_server)
