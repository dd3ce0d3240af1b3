"""The interleaved run: every prompt through off, shadow and prod, in an order that rotates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from gateway.demo.client import Answer
from gateway.demo.prompts import Prompt
from gateway.evidence.loops import is_looping

Mode = Literal["off", "shadow", "prod"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The answers to one prompt in each mode."""

    prompt: Prompt
    off: Answer
    shadow: Answer
    prod: Answer

    @property
    def looping(self) -> bool:
        """Whether any of the answers loops: then the prompt is left out of every headline number."""
        return any(is_looping(answer.ids) for answer in (self.off, self.shadow, self.prod))


def measure(
    prompts: Iterable[Prompt], ask: Callable[[Mode, Prompt], Answer], *, first: int = 0
) -> Iterator[Trial]:
    """Ask every prompt in every mode, one request at a time, prompt by prompt.

    Args:
        prompts: What to ask.
        ask: Answers one prompt in one mode.
        first: How many prompts have been asked before these; the order of modes goes on from there.
    """
    for index, prompt in enumerate(prompts, first):
        answers = {mode: ask(mode, prompt) for mode in _rotated(index)}
        yield Trial(prompt=prompt, off=answers["off"], shadow=answers["shadow"], prod=answers["prod"])


def _rotated(index: int) -> tuple[Mode, ...]:
    """No mode always comes first, when the prompt is new to the server's prefix cache."""
    start = index % len(MODES)
    return MODES[start:] + MODES[:start]
