"""Training prompts, made of templates: code edits, quoting, summaries, chat and stories (prompts.yaml)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle, islice
from typing import Any

import yaml

WORKLOADS = ("code", "rag", "summarise", "chat", "creative")

_HELD_OUT_STRIDE = 4
"""Every fourth entry of a list is used by held-out prompts, and by no others."""

_SHARED = {"number", "day", "month"}
"""Lists that have too few entries for that, and say nothing about a topic."""

_NAME = re.compile(r"\$(?P<brace>\{)?(?P<name>[a-z]+)(?P<number>\d*)(?(brace)\})")
_ALTERNATIVES = re.compile(r"<([^<>\n|]*(?:\|[^<>\n|]*)+)>")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message, and the workload that it stands for."""

    workload: str
    text: str


def make_prompts(count: int, *, seed: int, held_out: bool) -> list[Prompt]:
    """Make `count` prompts, workloads taking turns; the same `seed` makes the same ones.

    Held-out prompts share the wording of their orders with the others, but no text, name or topic.
    """
    grammars = yaml.safe_load(files("draftrunner.training").joinpath("prompts.yaml").read_text("utf-8"))
    # Drawn to be the same each time, not to be unpredictable.
    draw = random.Random(f"{seed} {held_out}")  # noqa: S311
    return [
        Prompt(workload, _written(grammars[workload], draw, held_out=held_out))
        for workload in islice(cycle(WORKLOADS), count)
    ]


def _written(grammar: Mapping[str, Any], draw: random.Random, *, held_out: bool) -> str:
    words = {
        name: entries if name in _SHARED else _share(entries, held_out=held_out)
        for name, entries in grammar["words"].items()
    }
    return _Filling(words, draw).fill(draw.choice(grammar["forms"])).strip()


def _share(entries: Sequence[str], *, held_out: bool) -> list[str]:
    return [
        entry
        for number, entry in enumerate(entries)
        if (number % _HELD_OUT_STRIDE == _HELD_OUT_STRIDE - 1) is held_out
    ]


class _Filling:
    """Fills the gaps of one prompt; a name stands for the same entry wherever it occurs."""

    def __init__(self, words: Mapping[str, Sequence[str]], draw: random.Random) -> None:
        self._words = words
        self._draw = draw
        self._chosen: dict[str, dict[str, str]] = {}

    def fill(self, text: str) -> str:
        decided = _ALTERNATIVES.sub(lambda found: self._draw.choice(found[1].split("|")), text)
        return _NAME.sub(lambda found: self.fill(self._entry(found["name"], found["number"])), decided)

    def _entry(self, name: str, number: str) -> str:
        chosen = self._chosen.setdefault(name, {})
        if number not in chosen:
            unused = [entry for entry in self._words[name] if entry not in chosen.values()]
            chosen[number] = self._draw.choice(unused)
        return chosen[number]
