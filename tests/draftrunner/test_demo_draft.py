"""The draft model that is shipped for the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import draftrunner
from draftrunner.drafters.loading import DraftModel, load_draft_model
from draftrunner.pairing import compare_tokenizers
from draftrunner.replay import replay
from draftrunner.weights import find_checkpoint, load_tokenizer
from tests.fakes.target import Ending, generate, own_choice, scripted

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTION = "<|im_start|>user\nHow do I keep a dog cool in summer?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = (
    "Here are some tips on how to keep a dog cool in summer:\n\n1. Give it fresh water. A dog needs a lot of "
    "water when it is hot.\n2. Keep it in the shade. Do not leave a dog in the sun.\n3. Walk it at night."
)


@pytest.fixture(scope="module")
def shipped() -> DraftModel:
    return load_draft_model("demo", device="cpu", memory_gib=1.0)


def test_it_is_small() -> None:
    folder = Path(draftrunner.__file__).parent / "demo_draft"
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 20 * 2**20


def test_it_pairs_with_the_demo_model(shipped: DraftModel) -> None:
    target = load_tokenizer(find_checkpoint("demo"))
    comparison = compare_tokenizers(
        target, shipped.tokenizer, target_size=len(target), draft_size=shipped.vocabulary_size
    )
    assert comparison.agrees
    assert comparison.sentence == "the tokenizers agree on all 49,152 ids"


def test_replay_counts_what_a_live_run_counts(shipped: DraftModel) -> None:
    prompt, answer = (
        tuple(shipped.tokenizer.encode(text, add_special_tokens=False)) for text in (QUESTION, ANSWER)
    )
    curve = replay(prompt, answer, shipped.drafter, range(1, 9))
    assert curve[8].accepted_tokens > 0, "otherwise nothing is shown"
    for k in range(1, 9):
        session = shipped.drafter.open(prompt)
        live, steps = generate(
            scripted(prompt, answer), own_choice, prompt, Ending(most=len(answer)), session=session, k=k
        )
        session.close()
        assert tuple(live) == answer
        verified = [step for step in steps if step.drafted]
        assert curve[k].passes == len(steps)
        assert curve[k].per_step_drafted == tuple(step.drafted for step in verified)
        assert curve[k].per_step_accepted == tuple(step.accepted for step in verified)
