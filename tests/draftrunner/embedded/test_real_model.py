"""The demo model itself, in float32: speculation changes no id, and replay counts what really happened."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftrunner.embedded.api import Message
from draftrunner.embedded.generation import Ask
from draftrunner.embedded.prompts import Tokenizer
from draftrunner.embedded.sampling import Sampling
from draftrunner.embedded.target import LanguageModel
from draftrunner.model import Origin
from draftrunner.replay import replay
from draftrunner.weights import end_ids, find_checkpoint, load_model, load_tokenizer
from tests.fakes.engine_runs import GREEDY, EngineRun, prod, running_engine

pytestmark = [pytest.mark.model, pytest.mark.slow]

LOOKAHEADS = {"ngram": (1, 3, 5, 8), "suffix": (5,)}
SAMPLED = Sampling(temperature=0.8, top_p=1.0, top_k=0, seed=20)
PROMPTS = {
    "code edit": (
        "Rename the variable `total` to `amount` and return the whole function:\n"
        "def price(items, tax):\n"
        "    total = 0\n"
        "    for item in items:\n"
        "        total = total + item.price\n"
        "    total = total + total * tax\n"
        "    return total\n"
    ),
    "rag": (
        "Passage: The lighthouse at Skerry Point was built in 1871 by the engineer Mary Alder. It is 42 m "
        "tall and its lamp can be seen from 30 kilometres away.\n"
        "Answer with the sentence of the passage that tells who built the lighthouse."
    ),
    "chat": "What should I pack for a weekend in the mountains?",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(load_tokenizer(find_checkpoint("demo")))


@pytest.fixture(scope="module")
def run(tokenizer: Tokenizer) -> Iterator[EngineRun]:
    model = load_model(find_checkpoint("demo"), "float32")
    with running_engine(LanguageModel(model, end_ids=end_ids(model)), tokenizer.decode) as running:
        yield running


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_speculation_changes_no_id_and_replay_equals_reality(
    run: EngineRun, tokenizer: Tokenizer, prompt: str, sampling: Sampling
) -> None:
    text = tokenizer.render([Message(role="user", content=PROMPTS[prompt])], add_generation_prompt=True)
    ask = Ask(
        prompt=tuple(tokenizer.encode(text, add_special_tokens=False)),
        max_tokens=40,
        sampling=sampling,
        end_ids=frozenset({2}),
        # After the other prompts' answers were learnt, and before this one's.
        origin=Origin(tenant="t", as_of=time.time()),
    )
    plain = run.answer(ask)
    for drafter, lookaheads in LOOKAHEADS.items():
        curve = replay(ask.prompt, plain.token_ids, run.drafters[drafter], lookaheads, ask.origin)
        for k in lookaheads:
            speculated = run.answer(ask, **prod(k), drafter=drafter)
            assert speculated.token_ids == plain.token_ids
            assert speculated.finish is not None
            steps = [done for done in speculated.finish.steps if done.drafted]
            assert tuple(done.drafted for done in steps) == curve[k].per_step_drafted
            assert tuple(done.accepted for done in steps) == curve[k].per_step_accepted
            assert len(speculated.finish.steps) == curve[k].passes
