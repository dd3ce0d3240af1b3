from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from draftrunner.training import card, student  # noqa: E402 - after the skip
from draftrunner.training.answers import Answered, Question, answer_all, load, save  # noqa: E402
from draftrunner.training.prompts import WORKLOADS  # noqa: E402
from draftrunner.training.student import Recipe, agreement, make_student, train  # noqa: E402

VOCABULARY = 60
END = 1
RECIPE = Recipe(hidden=16, layers=2, copy_steps=4, epochs=80, batch_tokens=800)


@pytest.fixture(scope="module")
def target() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=256,
                initializer_range=0.4,
                eos_token_id=END,
            )
        ).eval()


@pytest.fixture(scope="module")
def answers(target: Any) -> list[Answered]:
    questions = [
        Question(workload, tuple(range(2, 2 + length)), temperature)
        for workload, length in zip(WORKLOADS, (3, 9, 30, 17, 5), strict=True)
        for temperature in (0.0, 0.7)
    ]
    return list(answer_all(target, questions, ends=frozenset({END}), seed=1))


def test_answers_of_a_batch_are_what_the_target_says_alone(target: Any, answers: list[Answered]) -> None:
    assert len(answers) == 10
    for answered in answers:
        whole = torch.cat([answered.prompt, answered.answer])[None].long()
        with torch.inference_mode():
            logits = target(input_ids=whole).logits[0, len(answered.prompt) - 1 : -1]
        top = logits.softmax(-1).topk(answered.top_ids.shape[1])
        assert torch.equal(top.indices.int(), answered.top_ids)
        assert torch.allclose(top.values, answered.top_probabilities.float(), atol=1e-3)
        if answered.sampled:
            assert (answered.top_ids == answered.answer[:, None]).any(-1).all()
        else:
            assert torch.equal(answered.answer, answered.top_ids[:, 0])


def test_an_answer_ends_with_its_end_of_sequence(answers: list[Answered]) -> None:
    assert any(END in answered.answer for answered in answers)
    for answered in answers:
        assert END not in answered.answer[:-1]


def test_answers_are_read_as_they_were_saved(answers: list[Answered], tmp_path: Path) -> None:
    save(answers, tmp_path / "part.safetensors")
    read = load(tmp_path / "part.safetensors")
    assert [(one.workload, one.sampled) for one in read] == [(one.workload, one.sampled) for one in answers]
    for one, other in zip(read, answers, strict=True):
        assert torch.equal(one.prompt, other.prompt)
        assert torch.equal(one.answer, other.answer)
        assert torch.equal(one.top_ids, other.top_ids)
        assert torch.equal(one.top_probabilities, other.top_probabilities)
    assert [path.name for path in tmp_path.iterdir()] == ["part.safetensors"]


def test_the_first_embeddings_keep_what_the_targets_say_of_one_another(target: Any) -> None:
    """As many dimensions as the target has: then nothing is lost but where the middle is, and the scale."""
    small = make_student(target, Recipe(hidden=32, layers=2)).get_input_embeddings().weight
    rows = target.get_input_embeddings().weight
    ratios = torch.pdist(small) / torch.pdist(rows)
    assert torch.allclose(ratios, ratios.mean().expand_as(ratios), rtol=1e-3)
    assert small.std().item() == pytest.approx(0.04, rel=1e-3)


def test_training_brings_the_student_closer_to_its_target(
    target: Any, answers: list[Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(student, "_STRANGERS", 20)
    said: list[str] = []
    model = make_student(target, RECIPE)
    before = agreement(model, answers)
    train(model, answers, RECIPE, said.append)
    after = agreement(model, answers)
    assert set(after) == {(workload, sampled) for workload in WORKLOADS for sampled in (False, True)}
    assert sum(after.values()) > sum(before.values())
    losses = [float(line.rpartition(" ")[2]) for line in said if line.startswith("epoch")]
    assert len(losses) == RECIPE.epochs
    assert losses[-1] < losses[0]
    assert not model.training


def test_training_twice_makes_the_same_model(
    target: Any, answers: list[Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(student, "_STRANGERS", 20)
    models = [make_student(target, RECIPE) for _ in range(2)]
    for model in models:
        train(model, answers, RECIPE, lambda _: None)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def test_agreement_is_the_share_of_tokens_that_are_guessed() -> None:
    class Echo:
        """Guesses that every token is followed by itself."""

        def model(self, *, input_ids: Any, use_cache: bool) -> Any:
            from types import SimpleNamespace

            return SimpleNamespace(
                last_hidden_state=torch.nn.functional.one_hot(input_ids, VOCABULARY).float()
            )

        def lm_head(self, hidden: Any) -> Any:
            return hidden

    answered = Answered(
        workload="chat",
        sampled=False,
        prompt=torch.tensor([5]),
        answer=torch.tensor([5, 5, 6, 6]),
        top_ids=torch.empty(4, 0),
        top_probabilities=torch.empty(4, 0),
    )
    assert agreement(Echo(), [answered]) == {("chat", False): 0.75}


def test_the_card_holds_the_figures(tmp_path: Path, answers: list[Answered]) -> None:
    figures = {(workload, sampled): 0.25 + sampled / 4 for workload in WORKLOADS for sampled in (False, True)}
    card.write(tmp_path, RECIPE, learnt=answers, held_out=7, figures=figures)
    text = (tmp_path / "README.md").read_text()
    assert "| chat | 0.25 | 0.50 |" in text
    assert f"{sum(len(answered.answer) for answered in answers):,} tokens" in text.replace("\n", " ")
    assert "7 held-out prompts" in text
    assert math.isfinite(RECIPE.rate)
