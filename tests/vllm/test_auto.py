"""`auto` on a stock vLLM without a GPU: the loop is timed, does not pay, and is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import openai
import pytest

from gateway.demo.prompts import Prompt, load_prompts
from tests.fakes.processes import PATIENCE_S, Front, Part, until

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.vllm]

NUMBERS = count()
LENGTHS = (24, 32)
"""A prompt is asked at each, so that enough answers are left where some cannot be measured."""

WORKLOADS = ("chat", "creative", "summarise")
"""What is mostly not copied. Whether copying pays hangs on how busy this machine is."""

PROMPTS = [prompt for prompt in load_prompts() if prompt.workload in WORKLOADS]
POLICY = """
version: 1
rules:
  - {name: measured, match: {tenant: measured}, mode: shadow, draft: ngram}
  - name: driven
    match: {tenant: driven}
    mode: prod
    experimental: true
    draft: ngram
    prod: {executor: auto, control: {fraction: 0}}
"""


@pytest.fixture(scope="module")
def front(vllm: Part, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A gateway that has seen each workload in mode shadow, and has then timed the loop's steps."""
    with Front(tmp_path_factory.mktemp("auto"), policy=POLICY) as front:
        front.register("plain", vllm.url, kind="openai")
        for prompt in PROMPTS:
            for tokens in LENGTHS:
                ask(front, "measured", prompt, tokens)
        front.admin.post("/backends/plain/calibrate").raise_for_status()
        yield front


def ask(front: Front, tenant: str, prompt: Prompt, tokens: int) -> dict[str, Any]:
    """The record of one answer."""
    name = f"{tenant}-{prompt.name}-{next(NUMBERS)}"
    with openai.OpenAI(
        base_url=f"{front.gateway.url}/v1", api_key=front.key(tenant), max_retries=0, timeout=PATIENCE_S
    ) as client:
        client.chat.completions.create(
            model=front.admin.get("/backends/plain").json()["models"][0],
            messages=[{"role": "user", "content": prompt.text}],
            max_tokens=tokens,
            temperature=0,
            extra_headers={"x-request-id": name, "x-ace-workload": prompt.workload},
        )
    return front.stage_of(name)


def predicted(stage: dict[str, Any]) -> dict[str, Any] | None:
    """The record, once predictions are made of what shadow and calibration have left."""
    return None if stage["reason"] == "no_evidence" else stage


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_loop_that_does_not_pay_is_not_driven(front: Front, workload: str) -> None:
    prompt = next(prompt for prompt in PROMPTS if prompt.workload == workload)
    stage = until(lambda: predicted(ask(front, "driven", prompt, 1)), "a decision from evidence")
    assert (stage["action"], stage["reason"]) == ("bypass", "not_worth_it")


def test_the_calibration_is_shown(front: Front) -> None:
    shown = front.admin.get("/backends/plain").json()
    calibration = shown["calibrations"][0]
    assert calibration["strategy"] == "fanout"
    assert calibration["plain_seconds"] > 0
    assert min(calibration["verify_seconds"].values()) > calibration["plain_seconds"]
    (sentence,) = [one["sentence"] for one in shown["executors"] if one["name"] == "gateway_loop"]
    assert "ms" in sentence
