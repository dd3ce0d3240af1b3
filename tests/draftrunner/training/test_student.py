from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from draftrunner.training import card  # noqa: E402 - after the skip
from draftrunner.training.answers import Answered, Question, answer_all, load, save  # noqa: E402
from draftrunner.training.prompts import WORKLOADS  # noqa: E402
from draftrunner.training.student import Recipe, Student, agreement, make_student, train  # noqa: E402
from draftrunner.training.vocabulary import hot_token_ids  # noqa: E402
from draftrunner.weights import Checkpoint, DraftCheckpoint, load_draft, load_token_map  # noqa: E402

VOCABULARY = 60
END = 1
RECIPE = Recipe(layers=1, vocabulary=40, epochs=80, batch_tokens=800)


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


def test_the_tokens_to_propose_are_those_that_the_target_thinks_likely() -> None:
    answered = Answered(
        workload="chat",
        sampled=False,
        prompt=torch.tensor([0]),
        answer=torch.tensor([7, 7]),
        top_ids=torch.tensor([[7, 9], [7, 8]]),
        top_probabilities=torch.tensor([[0.9, 0.1], [0.6, 0.4]]),
    )
    assert hot_token_ids([answered], vocabulary_size=10, count=2).tolist() == [7, 8]
    assert hot_token_ids([answered], vocabulary_size=10, count=5).tolist() == [0, 1, 7, 8, 9], "then low ids"


def test_the_student_starts_as_the_targets_first_layers(target: Any, answers: list[Answered]) -> None:
    student = make_student(target, answers, RECIPE)
    assert len(student.model.model.layers) == RECIPE.layers
    weights = target.state_dict()
    for name, weight in student.model.state_dict().items():
        assert torch.equal(weight, weights[name])
    assert len(student.hot_ids) == RECIPE.vocabulary


@pytest.mark.slow
def test_training_brings_the_student_closer_to_its_target(target: Any, answers: list[Answered]) -> None:
    said: list[str] = []
    student = make_student(target, answers, RECIPE)
    before = agreement(student, answers)
    train(student, answers, RECIPE, said.append)
    after = agreement(student, answers)
    assert set(after) == {(workload, sampled) for workload in WORKLOADS for sampled in (False, True)}
    assert sum(after.values()) > sum(before.values())
    losses = [float(line.rpartition(" ")[2]) for line in said if line.startswith("epoch")]
    assert len(losses) == RECIPE.epochs
    assert losses[-1] < losses[0]
    assert not student.model.training


def test_training_leaves_the_embeddings_as_the_target_has_them(target: Any, answers: list[Answered]) -> None:
    student = make_student(target, answers, RECIPE)
    before = student.model.model.layers[0].mlp.up_proj.weight.detach().clone()
    train(student, answers, replace(RECIPE, epochs=1), lambda _: None)
    assert not torch.equal(student.model.model.layers[0].mlp.up_proj.weight, before)
    for mine, targets in (
        (student.model.get_input_embeddings(), target.get_input_embeddings()),
        (student.model.get_output_embeddings(), target.get_output_embeddings()),
    ):
        assert torch.equal(mine.weight, targets.weight)


@pytest.mark.slow
def test_training_twice_makes_the_same_model(target: Any, answers: list[Answered]) -> None:
    students = [make_student(target, answers, RECIPE) for _ in range(2)]
    for student in students:
        train(student, answers, RECIPE, lambda _: None)
    for one, other in zip(*(student.model.parameters() for student in students), strict=True):
        assert torch.equal(one, other)


def test_what_is_saved_is_loaded_with_the_targets_embeddings(
    target: Any, answers: list[Answered], tmp_path: Path
) -> None:
    target.save_pretrained(tmp_path / "target")
    student = make_student(target, answers, RECIPE)
    student.save(tmp_path / "draft")
    lender = Checkpoint(tmp_path / "target", "target")
    checkpoint = DraftCheckpoint(Checkpoint(tmp_path / "draft", "draft"), lender, lender)

    loaded = load_draft(checkpoint, "float32")

    targets = target.state_dict()
    for name, weight in student.model.state_dict().items():
        lent = name in ("model.embed_tokens.weight", "lm_head.weight")
        expected = targets[name] if lent else weight.bfloat16().float()
        assert torch.equal(loaded.state_dict()[name], expected)
    token_map = load_token_map(checkpoint)
    assert token_map is not None
    assert torch.equal(token_map, student.hot_ids)


def test_agreement_is_the_share_of_tokens_that_are_guessed() -> None:
    class Echo:
        """Guesses that every token is followed by itself."""

        def base_model(self, *, input_ids: Any, use_cache: bool) -> Any:
            return SimpleNamespace(
                last_hidden_state=torch.nn.functional.one_hot(input_ids, VOCABULARY).float()
            )

        def get_output_embeddings(self) -> Any:
            return SimpleNamespace(weight=torch.eye(VOCABULARY))

    answered = Answered(
        workload="chat",
        sampled=False,
        prompt=torch.tensor([5]),
        answer=torch.tensor([5, 5, 6, 6]),
        top_ids=torch.empty(4, 0),
        top_probabilities=torch.empty(4, 0),
    )
    assert agreement(Student(Echo(), torch.arange(VOCABULARY)), [answered]) == {("chat", False): 0.75}


def test_the_card_holds_the_figures(tmp_path: Path, answers: list[Answered]) -> None:
    figures = {(workload, sampled): 0.25 + sampled / 4 for workload in WORKLOADS for sampled in (False, True)}
    card.write(tmp_path, RECIPE, learnt=answers, held_out=7, figures=figures)
    text = (tmp_path / "README.md").read_text()
    assert "| chat | 0.25 | 0.50 |" in text
    assert f"{sum(len(answered.answer) for answered in answers):,} tokens" in text.replace("\n", " ")
    assert "7 held-out prompts" in text
    assert math.isfinite(RECIPE.rate)
