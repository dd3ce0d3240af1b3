"""The draft model: the target's first layers, taught to say what all of them say."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftrunner.training.answers import Answered
from draftrunner.training.vocabulary import hot_token_ids
from draftrunner.weights import HOT_TOKEN_IDS, TOKEN_MAP_FILE, WEIGHTS_FILE

_COLD = -1
"""Column of a token that is never proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What decides how good the model becomes, next to its data.

    Attributes:
        layers: How many of the target's.
        vocabulary: How many tokens it may propose.
        epochs: Passes over the answers.
        rate: Highest learning rate.
        batch_tokens: Tokens of an update, padding included.
        seed: Of the order of the answers.
    """

    layers: int = 2
    vocabulary: int = 8192
    epochs: int = 6
    rate: float = 2e-3
    batch_tokens: int = 768
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Student:
    """A draft model in the making.

    Attributes:
        model: The target's first layers between the target's embeddings, which do not change.
        hot_ids: The tokens that it may propose, ascending. shape: [hot]
    """

    model: Any
    hot_ids: torch.Tensor

    def save(self, folder: Path) -> None:
        """Write what is its own: configuration, layers in bfloat16 and token map, without the embeddings."""
        self.model.config.save_pretrained(folder)
        learnt = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        state = {name: weight.detach().to(torch.bfloat16) for name, weight in learnt.items()}
        save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        save_file({HOT_TOKEN_IDS: self.hot_ids.int()}, folder / TOKEN_MAP_FILE)


def make_student(target: Any, answers: Sequence[Answered], recipe: Recipe) -> Student:
    """Return the target's first layers, in float32, and the tokens that its answers are made of."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = recipe.layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: recipe.layers]
    model = type(target)(config).float()
    kept = model.state_dict().keys()
    model.load_state_dict({name: weight for name, weight in target.state_dict().items() if name in kept})
    for lent in (model.get_input_embeddings(), model.get_output_embeddings()):
        lent.weight.requires_grad_(False)
    return Student(model, hot_token_ids(answers, vocabulary_size=config.vocab_size, count=recipe.vocabulary))


def train(student: Student, answers: Sequence[Answered], recipe: Recipe, say: Callable[[str], None]) -> None:
    """Teach `student` to give the target's probabilities at every position of every answer."""
    model = student.model
    scorer = _Scorer.of(student)
    draw = random.Random(recipe.seed)  # noqa: S311 - to be the same each time
    epochs = [_groups(answers, recipe.batch_tokens, draw) for _ in range(recipe.epochs)]
    optimizer = torch.optim.AdamW(_weight_groups(model, recipe), betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_then_cosine(sum(map(len, epochs))))
    model.train()

    def update(loss: torch.Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.item()

    for epoch, groups in enumerate(epochs):
        losses = [update(_answer_loss(model, scorer, _padded(group))) for group in groups]
        say(f"epoch {epoch + 1} of {recipe.epochs}: loss {sum(losses) / len(losses):.3f}")
    model.eval()


def _weight_groups(model: Any, recipe: Recipe) -> list[dict[str, Any]]:
    """Matrices decay towards zero, scales do not."""
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    return [
        {"params": [weight for weight in learnt if weight.ndim > 1], "lr": recipe.rate, "weight_decay": 0.05},
        {"params": [weight for weight in learnt if weight.ndim == 1], "lr": recipe.rate, "weight_decay": 0.0},
    ]


def _warm_then_cosine(steps: int, warm: int = 50) -> Callable[[int], float]:
    def share(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return share


@dataclass(frozen=True, slots=True)
class _Scorer:
    """The output layer, of hot tokens only.

    Attributes:
        weight: Their rows. shape: [hot, wide]
        columns: Token id to its place among them, _COLD for all others. shape: [vocab]
    """

    weight: torch.Tensor
    columns: torch.Tensor

    @classmethod
    def of(cls, student: Student) -> _Scorer:
        weight = student.model.get_output_embeddings().weight.detach()
        columns = torch.full((len(weight),), _COLD)
        columns[student.hot_ids] = torch.arange(len(student.hot_ids))
        return cls(weight[student.hot_ids], columns)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits: torch.Tensor = hidden @ self.weight.T
        return logits.float()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Answers of like length, padded on the right.

    Attributes:
        tokens: Prompts and answers. shape: [rows, longest]
        places: Indices into the flattened tokens: each is followed by an answer token. shape: [n]
        top_ids: The target's likeliest tokens at each place. shape: [n, TOP]
        top_probabilities: Their shares; a row sums to 1. shape: [n, TOP]
    """

    tokens: torch.Tensor
    places: torch.Tensor
    top_ids: torch.Tensor
    top_probabilities: torch.Tensor


def _groups(answers: Sequence[Answered], batch_tokens: int, draw: random.Random) -> list[list[Answered]]:
    """All answers in groups of like length; which share one, and their order, is drawn anew each time."""

    def length(answered: Answered) -> int:
        return len(answered.prompt) + len(answered.answer)

    # Lengths within sixteen of one another count as equal, so that groups differ between epochs.
    ordered = sorted(answers, key=lambda answered: (length(answered) // 16, draw.random()))
    groups: list[list[Answered]] = [[]]
    for answered in ordered:
        if groups[-1] and (len(groups[-1]) + 1) * length(answered) > batch_tokens:
            groups.append([])
        groups[-1].append(answered)
    draw.shuffle(groups)
    return groups


def _padded(group: Sequence[Answered]) -> _Batch:
    whole = [torch.cat([answered.prompt, answered.answer]).long() for answered in group]
    tokens = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    places = torch.cat(
        [
            row * tokens.shape[1] + len(answered.prompt) - 1 + torch.arange(len(answered.answer))
            for row, answered in enumerate(group)
        ]
    )
    probabilities = torch.cat([answered.top_probabilities for answered in group]).float()
    return _Batch(
        tokens=tokens,
        places=places,
        top_ids=torch.cat([answered.top_ids for answered in group]).long(),
        top_probabilities=probabilities / probabilities.sum(-1, keepdim=True),
    )


def _answer_loss(model: Any, scorer: _Scorer, batch: _Batch) -> torch.Tensor:
    """Cross-entropy against the target's own probabilities; a place counts by its share of hot tokens."""
    logits = scorer.logits(_hidden_states(model, batch.tokens).flatten(0, 1)[batch.places])  # [n, hot]
    columns = scorer.columns[batch.top_ids]
    probabilities = batch.top_probabilities * (columns != _COLD)
    expected = (probabilities * logits.gather(1, columns.clamp(min=0))).sum(-1)
    return (probabilities.sum(-1) * logits.logsumexp(-1) - expected).mean()


def _hidden_states(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """No mask is needed: padding stands on the right, where no token looks."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states: torch.Tensor = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    return states


@torch.inference_mode()
def agreement(student: Student, answers: Sequence[Answered]) -> dict[tuple[str, bool], float]:
    """Share of answer tokens that the student's likeliest token equals, by (workload, sampled)."""
    agreed: dict[tuple[str, bool], list[float]] = {}
    scorer = _Scorer.of(student)
    for answered in answers:
        tokens = torch.cat([answered.prompt, answered.answer]).long()
        hidden = _hidden_states(student.model, tokens[None])[0, len(answered.prompt) - 1 : -1]
        guesses = student.hot_ids[scorer.logits(hidden).argmax(-1)]
        agreed.setdefault((answered.workload, answered.sampled), []).extend(
            (guesses == answered.answer).float().tolist()
        )
    return {key: sum(hits) / len(hits) for key, hits in sorted(agreed.items())}
