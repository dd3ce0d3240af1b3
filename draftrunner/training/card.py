"""The card beside the draft model: how it was made, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from draftrunner.training.answers import TOP, Answered
from draftrunner.training.prompts import WORKLOADS
from draftrunner.training.student import Recipe

Figures = Mapping[tuple[str, bool], float]
"""Share of tokens named rightly, by workload and whether the answers were sampled."""

_TEXT = """# Draft model of the demo

Drafts for SmolLM2-135M-Instruct (the demo model). This folder holds what was learnt: {layers} layers, and the
ids of the tokens that it proposes. Embeddings and tokenizer are the demo model's, taken from its checkpoint
when this one is loaded. Useless for any other target.

## How it was made

`make draft-model`: the demo model answered {answers:,} templated prompts (code edits, quoting, summaries,
chat, stories; none of the demo's own prompts), half of them greedy and half at temperature 0.7:
{tokens:,} tokens. Its first {layers} layers then learnt its {top} likeliest tokens at every position of those
answers ({epochs} epochs). The {vocabulary:,} tokens that it thought likeliest in all of them are the only
ones proposed.

## How often it is right

Share of the demo model's tokens that it names, on answers to {held_out:,} held-out prompts. These share the
wording of their orders with the training prompts, but no text, name or topic.

| workload | greedy | temperature 0.7 |
|---|---|---|
{rows}

## Licence

Made from SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), whose first layers it starts from. Apache-2.0.
"""


def table(figures: Figures) -> list[str]:
    """One line of the card's table for each workload."""
    return [
        f"| {workload} | {figures[workload, False]:.2f} | {figures[workload, True]:.2f} |"
        for workload in WORKLOADS
    ]


def write(
    folder: Path, recipe: Recipe, *, learnt: Sequence[Answered], held_out: int, figures: Figures
) -> None:
    """Write README.md into the checkpoint's folder."""
    text = _TEXT.format(
        answers=len(learnt),
        tokens=sum(len(answered.answer) for answered in learnt),
        layers=recipe.layers,
        vocabulary=recipe.vocabulary,
        top=TOP,
        epochs=recipe.epochs,
        held_out=held_out,
        rows="\n".join(table(figures)),
    )
    folder.joinpath("README.md").write_text(text, encoding="utf-8")
