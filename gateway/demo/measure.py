"""The interleaved run: every prompt asked in several ways, in an order that rotates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.demo.client import Answer
from gateway.demo.prompts import Prompt
from gateway.evidence.loops import is_looping
from gateway.evidence.multiplier import Speed


class Way(StrEnum):
    """A way to ask: the policy gives each its own rule, by the tenant `demo-WAY`."""

    OFF = "off"
    SHADOW = "shadow"
    PROD = "prod"
    LOOP = "loop"
    K1 = "k1"
    K3 = "k3"
    K8 = "k8"


EXECUTORS: Mapping[str, Way] = {"in_engine": Way.PROD, "gateway_loop": Way.LOOP}
"""The way that asks for each executor."""

SHORTEST: tuple[Way, ...] = (Way.OFF, Way.SHADOW, Way.PROD)
"""How every prompt of every demo is asked, at least."""

OTHER_KS: Mapping[Way, int] = {Way.K1: 1, Way.K3: 3, Way.K8: 8}
"""Prod with another K than the policy's usual one: asked of some prompts, for the measured K curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The answers to one prompt, by the way in which it was asked: at least those of SHORTEST."""

    prompt: Prompt
    answers: Mapping[Way, Answer]

    @property
    def off(self) -> Answer:
        """Plainly decoded."""
        return self.answers[Way.OFF]

    @property
    def shadow(self) -> Answer:
        """Plainly decoded, and replayed afterwards."""
        return self.answers[Way.SHADOW]

    @property
    def prod(self) -> Answer:
        """Speculated inside the engine, with the policy's usual K."""
        return self.answers[Way.PROD]

    @property
    def plain_speed(self) -> Speed:
        """(decode tokens, decode seconds) of both plainly decoded answers together.

        One answer's time varies more than what is to be measured, and nothing tells the two apart.
        """
        return (
            self.off.decode_tokens + self.shadow.decode_tokens,
            self.off.decode_seconds + self.shadow.decode_seconds,
        )

    @property
    def looping(self) -> bool:
        """Whether any of the answers loops: then the prompt is left out of every headline number."""
        return any(is_looping(answer.ids) for answer in self.answers.values())


def ways_to_ask(
    prompts: Iterable[Prompt], usual: Sequence[Way], curve_prompts: int
) -> dict[Prompt, tuple[Way, ...]]:
    """How each prompt is asked: as usual, the first `curve_prompts` of a workload with every other K too."""
    seen: Counter[str] = Counter()
    ways = {}
    for prompt in prompts:
        first = seen[prompt.workload] < curve_prompts
        ways[prompt] = (*usual, *OTHER_KS) if first else tuple(usual)
        seen[prompt.workload] += 1
    return ways


def measure(
    prompts: Iterable[Prompt],
    ask: Callable[[Way, Prompt], Answer],
    *,
    ways: Callable[[Prompt], Sequence[Way]],
    first: int = 0,
) -> Iterator[Trial]:
    """Ask every prompt in each of its ways, one request at a time, prompt by prompt.

    Args:
        prompts: What to ask.
        ask: Answers one prompt in one way.
        ways: How a prompt is to be asked.
        first: How many prompts have been asked before these; the order of ways goes on from there.
    """
    for index, prompt in enumerate(prompts, first):
        yield Trial(prompt=prompt, answers={way: ask(way, prompt) for way in _in_turn(ways(prompt), index)})


def with_ids(trial: Trial, tokenize: Callable[[str], Sequence[int]]) -> Trial:
    """The trial with ids for the answers that came without, so that all of them can be compared.

    Args:
        trial: What was answered.
        tokenize: The target's ids for a text. Only asked where the text is not the off answer's.
    """
    off = trial.off

    def completed(answer: Answer) -> Answer:
        if answer.ids:
            return answer
        ids = off.ids if answer.text == off.text else tuple(tokenize(answer.text))
        return replace(answer, prompt_ids=off.prompt_ids, ids=ids)

    return replace(trial, answers={way: completed(answer) for way, answer in trial.answers.items()})


def _in_turn(ways: Sequence[Way], index: int) -> Sequence[Way]:
    """No way always comes first, when the prompt is new to the server's prefix cache.

    Nor always after the same other: a shadow answer is replayed while the next one begins.
    """
    ordered = ways if index % 2 == 0 else ways[::-1]
    start = index // 2 % len(ways)
    return [*ordered[start:], *ordered[:start]]
