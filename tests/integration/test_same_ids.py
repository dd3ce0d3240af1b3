"""float32, the demo model, every demo prompt: speculation changes no token, greedy or sampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.demo.prompts import WORKLOADS, Prompt, load_prompts
from tests.fakes.processes import PATIENCE_S, Stack
from tests.integration.conftest import POLICY

pytestmark = [pytest.mark.integration, pytest.mark.model, pytest.mark.slow]

TOKENS = 64
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 11},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The three parts with the demo model, in the number format whose sums hardly depend on their order."""
    with Stack(tmp_path_factory.mktemp("demo-model"), model="demo", policy=POLICY) as running:
        yield running


def answer(stack: Stack, key: str, prompt: Prompt, sampling: dict[str, Any]) -> dict[str, Any]:
    asked = {
        "model": stack.model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": TOKENS,
        "return_token_ids": True,
    }
    reply = httpx.post(
        f"{stack.gateway.url}/v1/chat/completions",
        json=asked | sampling,
        headers={"authorization": f"Bearer {key}"},
        timeout=PATIENCE_S,
    )
    return dict(reply.raise_for_status().json())


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_prod_gives_the_ids_of_off(stack: Stack, keys: dict[str, str], workload: str, sampling: str) -> None:
    prompts = [prompt for prompt in load_prompts() if prompt.workload == workload]
    assert len(prompts) >= 6
    for prompt in prompts:
        off, prod = (answer(stack, keys[mode], prompt, SAMPLINGS[sampling]) for mode in ("off", "prod"))
        assert prod["choices"][0]["token_ids"] == off["choices"][0]["token_ids"], prompt.name
        assert prod["usage"]["completion_tokens"] == off["usage"]["completion_tokens"]
        assert off["metrics"]["speculative_decoding"] is None
        assert prod["metrics"]["speculative_decoding"]["mode"] == "prod"
