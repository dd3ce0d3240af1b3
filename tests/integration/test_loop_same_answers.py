"""The loop against the embedded backend's own plain decoding: the same answers, in both strategies.

The draft runner and the embedded backend are real processes. The backend decodes in float32, so that its
choices do not depend on how many tokens a forward has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.demo.prompts import WORKLOADS, load_prompts
from gateway.loop import runner as runner_module
from gateway.loop.counts import LoopCounts
from gateway.loop.generation import Emission
from gateway.loop.strategies import STRATEGIES
from tests.fakes import raw_http
from tests.fakes.processes import PATIENCE_S, Part
from tests.gateway.loop.harness import Loop, decide_on_loops, outline, said
from tests.gateway.proxy.harness import RUNNER_TOKEN, Gateway, backend_at

pytestmark = [pytest.mark.slow, pytest.mark.integration]

TOKENS = {"scored": 24, "fanout": 8}
"""Of a demo prompt's answer: for each step of it fanout computes up to six times a prompt's last chunk."""

USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    # The backend's draws depend on seed and position alone.
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}


class Known:
    """A draft runner that has joined."""

    drafters = ("ngram",)

    def __init__(self, url: str) -> None:
        self.url = url


def embedded_backend(model: str, folder: Path) -> Part:
    arguments = ("embedded-backend", "--model", model, "--dtype", "float32", "--served-model-name", "m1")
    return Part("draftrunner", arguments, folder / "backend.log")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model on a busy machine takes its time."""
    monkeypatch.setattr(raw_http, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(runner_module, "CONNECT_S", PATIENCE_S)
    monkeypatch.setattr(runner_module, "FRAME_S", PATIENCE_S)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    log = tmp_path_factory.mktemp("runner") / "runner.log"
    with Part("draftrunner", ("draft-runner",), log, {"ACE_RUNNER_TOKEN": RUNNER_TOKEN}) as running:
        yield Known(running.url)


def loop_between(runner: Known, backend: Part) -> Iterator[Loop]:
    with Gateway([backend_at(backend.url, findings={})], runners=[runner]) as gateway:
        yield Loop(gateway, int(backend.url.rpartition(":")[2]))


@pytest.fixture(scope="module")
def tiny(runner: Known, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """In front of a two-layer model."""
    with embedded_backend(str(tiny_model), tmp_path_factory.mktemp("tiny")) as backend:
        yield from loop_between(runner, backend)


@pytest.fixture(scope="module")
def demo(runner: Known, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """In front of the demo model."""
    with embedded_backend("demo", tmp_path_factory.mktemp("demo")) as backend:
        yield from loop_between(runner, backend)


PROMPTS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "one two three one two three one two"}]},
    {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "3 € à Zürich"}]},
    {"prompt": "def add(first, second):\n    return"},
)
FORMS: tuple[dict[str, Any], ...] = (
    {},
    USAGE,
    {"stop": [" the", "e"], **USAGE},
    {"stop": " o"},
    {"max_tokens": 1},
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_answer_in_any_form_is_plain_decodings_in_every_member(
    tiny: Loop, monkeypatch: pytest.MonkeyPatch, strategy: str, sampling: str
) -> None:
    decide_on_loops(monkeypatch, strategy)
    accepted = 0
    for prompt, form in itertools.product(PROMPTS, FORMS):
        asked = {"max_tokens": 48, **SAMPLINGS[sampling], **prompt, **form}
        through, plain = tiny.both_raw(**asked)
        _, stage = tiny.records()
        assert said(through) == said(plain), asked
        assert outline(through) == outline(plain), asked
        assert (stage.action, stage.reason) == ("speculate", None)
        accepted += stage.accepted_tokens or 0
    assert accepted > 0


@pytest.mark.model
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_ids_of_every_demo_prompt_are_those_of_off(
    demo: Loop, monkeypatch: pytest.MonkeyPatch, strategy: str, workload: str
) -> None:
    decide_on_loops(monkeypatch, strategy)
    ids: list[int] = []
    count = LoopCounts.add

    def noted(counts: LoopCounts, emission: Emission, kept: int) -> None:
        ids.extend(token.id for token in emission.tokens[:kept])
        count(counts, emission, kept)

    monkeypatch.setattr(LoopCounts, "add", noted)
    prompts = [prompt for prompt in load_prompts() if prompt.workload == workload]
    assert len(prompts) >= 6
    for prompt in prompts:
        asked = {"messages": [{"role": "user", "content": prompt.text}], "max_tokens": TOKENS[strategy]}
        through = demo.through(**asked)
        _, stage = demo.records()
        off, off_ids = demo.plain_ids(**asked)
        assert (stage.action, stage.reason) == ("speculate", None), prompt.name
        assert ids == off_ids, prompt.name
        assert through == off, prompt.name
        ids.clear()
