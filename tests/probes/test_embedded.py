"""The suite against the embedded backend itself, with two random layers for a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from probes import in_engine, sampling
from probes.model import Capability, Support
from probes.question import MAX_SUITE_TOKENS
from probes.suite import SUITES, ProbeResult, probe
from tests.fakes.served import served

pytest.importorskip("torch", reason="the embedded backend needs the extra `draft`")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from draftrunner.embedded.app import create_app
    from draftrunner.embedded.engine import Limits
    from draftrunner.embedded.server import assemble
    from draftrunner.embedded.target import LanguageModel
    from draftrunner.weights import end_ids, find_checkpoint, load_model, load_tokenizer
    from tests.fakes.tiny_lm import build_tiny_lm

    folder: Path = build_tiny_lm(tmp_path_factory.mktemp("models") / "tiny")
    checkpoint = find_checkpoint(str(folder))
    model = load_model(checkpoint, "float32")
    backend = assemble(
        LanguageModel(model, end_ids=end_ids(model)),
        tokenizer=load_tokenizer(checkpoint),
        engine_tokenizer=load_tokenizer(checkpoint),
        model_id=checkpoint.model_id,
        limits=Limits(),
    )
    with served(create_app(backend)) as url:
        yield url


@pytest.fixture(scope="module")
def result(url: str) -> Iterator[ProbeResult]:
    """Random layers do not continue a text, but what they write themselves repeats itself."""
    body = {
        "model": "tiny",
        "prompt": "one two",
        "temperature": 0,
        "max_tokens": 300,
        "return_token_ids": True,
    }
    written = httpx.post(f"{url}/v1/completions", json=body, timeout=60.0).json()["choices"][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_engine, "PROMPT", written["prompt_token_ids"] + written["token_ids"])
        # After the whole of it these layers are nearly sure of one token.
        patch.setattr(sampling, "FLAT_PROMPT", "Random words, none twice: plinth,")
        yield asyncio.run(probe(url, kind="auto", headers={}, time_limit_s=60.0))


def test_it_is_recognised(result: ProbeResult) -> None:
    assert (result.kind, result.up, result.models) == ("embedded", True, ("tiny",)), result.reason


@pytest.mark.parametrize("capability", [c for c in Capability if c is not Capability.SINGLE_PROCESS])
def test_it_has_every_capability(result: ProbeResult, capability: Capability) -> None:
    finding = next(finding for finding in result.findings if finding.capability is capability)
    assert finding.support is Support.YES, finding.evidence


def test_its_suite_is_within_the_bound() -> None:
    assert sum(question.tokens for question in SUITES["embedded"]) <= MAX_SUITE_TOKENS
