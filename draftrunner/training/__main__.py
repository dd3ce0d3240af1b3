"""`make draft-model`: data from the demo model, a tiny model trained on it, a card with its figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draftrunner.training import answers, card, student
from draftrunner.training.prompts import make_prompts
from draftrunner.weights import DEMO_MODEL, end_ids, find_checkpoint, load_model, load_tokenizer

PROMPTS_IN_PART = 320
"""Prompts answered between two savings; what was saved is not made again."""

HELD_OUT_PROMPTS = 60
"""Prompts whose answers are kept for measuring."""

TEMPERATURE = 0.7
"""Of every second answer; the others are greedy."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the draft model."""
    asked = _parser().parse_args(arguments)
    torch.set_num_threads(asked.threads)
    asked.answers.mkdir(parents=True, exist_ok=True)
    begun = time.process_time()
    checkpoint = find_checkpoint(DEMO_MODEL)
    target: Any = load_model(checkpoint, "bfloat16")
    parts = [
        _answers(target, asked.answers / f"{number}.safetensors", number, PROMPTS_IN_PART, held_out=False)
        for number in range(asked.parts)
    ]
    learnt = [answered for part in parts for answered in part]
    say(f"{len(learnt)} answers, {sum(len(answered.answer) for answered in learnt)} tokens")
    recipe = student.Recipe()
    made = student.make_student(target, learnt, recipe)
    student.train(made, learnt, recipe, say)
    made.save(asked.out)
    held_out = _answers(target, asked.answers / "held-out.safetensors", 0, HELD_OUT_PROMPTS, held_out=True)
    figures = student.agreement(made, held_out)
    for line in card.table(figures):
        say(line)
    card.write(asked.out, recipe, learnt=learnt, held_out=len(held_out), figures=figures)
    say(f"written to {asked.out}; {(time.process_time() - begun) / 60:.0f} minutes of processor time")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m draftrunner.training", description="Make the demo's draft model."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint to write")
    parser.add_argument("--answers", type=Path, required=True, help="folder where answers are kept")
    parser.add_argument("--parts", type=int, default=6, help=f"times {PROMPTS_IN_PART} prompts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser


def _answers(target: Any, path: Path, seed: int, count: int, *, held_out: bool) -> list[answers.Answered]:
    """Answers to one set of prompts: those that were kept, or new ones."""
    if not path.exists():
        begun = time.monotonic()
        tokenizer: Any = load_tokenizer(find_checkpoint(DEMO_MODEL))
        questions = [
            answers.Question(
                prompt.workload, _ids(tokenizer, prompt.text), TEMPERATURE if number % 2 else 0.0
            )
            for number, prompt in enumerate(make_prompts(count, seed=seed, held_out=held_out))
        ]
        made = list(answers.answer_all(target, questions, ends=end_ids(target), seed=seed))
        answers.save(made, path)
        tokens = sum(len(answered.answer) for answered in made)
        say(f"{path.name}: {len(made)} answers, {tokens} tokens, {time.monotonic() - begun:.0f} s")
    return answers.load(path)


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    turns = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer.encode(rendered, add_special_tokens=False))


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
