"""How the engine chooses tokens: are its draws independent, and does it alter logits unasked?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.in_engine import PROMPT
from probes.model import Capability, Finding
from probes.question import Question, Target, no, unknown, without_success, yes
from probes.wire import Reply, clipped, dig

FLAT_PROMPT = "Random words, none twice: plinth, quokka, sextant, marzipan, ochre, gimlet,"
"""Nearly anything may follow."""

TEMPERATURE = 2
"""The highest that servers take, so that a model which is sure of itself draws different tokens too."""

DRAWS_PER_CALL = 4
CALLS = 2

NEUTRAL: Mapping[str, Any] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
STRONG: Mapping[str, Any] = {"repetition_penalty": 2.0, "presence_penalty": 2.0, "frequency_penalty": 2.0}
COPIED_TOKENS = 5

Written = list[tuple[Any, ...]]


async def ask_independent_draws(target: Target) -> Finding:
    """Do identical prompts draw different tokens, within a call and from call to call?"""
    capability = Capability.INDEPENDENT_DRAWS
    calls: list[Written] = []
    asked: dict[str, Any] = {"temperature": TEMPERATURE, "return_token_ids": True}
    for _ in range(CALLS):
        reply = await target.complete([FLAT_PROMPT] * DRAWS_PER_CALL, 1, **asked)
        if not reply.ok:
            return without_success(capability, reply)
        calls.append(_written(reply))
        if len(calls[-1]) != DRAWS_PER_CALL:
            return unknown(capability, f"not {DRAWS_PER_CALL} answers: {reply.evidence}")
    draws = [len(set(call)) for call in calls]
    different = " and ".join(map(str, draws))
    seen = (
        f"{DRAWS_PER_CALL} identical prompts in a call drew {different} different tokens, "
        f"at temperature {TEMPERATURE}"
    )
    if min(draws) == 1:
        return no(capability, seen)
    if calls[0] == calls[1]:
        return no(capability, f"{seen}, in two calls the same ones")
    return yes(capability, seen)


async def ask_neutral_defaults(target: Target) -> Finding:
    """Does it leave greedy logits alone when the request says nothing of penalties?

    A default penalty shows where a text repeats itself. That a stated penalty has an effect shows that the
    server heard the neutral one.
    """
    capability = Capability.NEUTRAL_DEFAULTS
    plain = await _copied(target, {})
    if not plain.ok:
        return without_success(capability, plain)
    stated = await _copied(target, NEUTRAL)
    if not stated.ok:
        return unknown(capability, f"neutral penalties cannot be asked for: {stated.evidence}")
    unsaid, neutral = _written(plain), _written(stated)
    names = ", ".join(NEUTRAL)
    if not (unsaid and neutral):
        return unknown(capability, f"nothing was written: {plain.evidence}")
    if unsaid != neutral:
        return no(capability, f"greedy, {names} left out wrote {_shown(unsaid)}, neutral {_shown(neutral)}")
    same = f"greedy, the same {COPIED_TOKENS} tokens of a repeating text with {names} left out and neutral"
    strong = await _copied(target, STRONG)
    if strong.ok and _written(strong) == unsaid:
        return unknown(capability, f"{same}; but strong ones change nothing either, so they are not heard")
    if not strong.ok and not strong.refused:
        return unknown(capability, f"{same}; whether stated ones are heard: {strong.evidence}")
    heard = "others are refused" if strong.refused else "strong ones change them"
    return yes(capability, f"{same}; {heard}")


async def _copied(target: Target, fields: Mapping[str, Any]) -> Reply:
    return await target.complete(PROMPT, COPIED_TOKENS, return_token_ids=True, **fields)


def _written(reply: Reply) -> Written:
    """What each choice wrote: ids, or the text where the engine gives none."""
    choices = reply.dig("choices")
    found: Written = []
    for choice in choices if isinstance(choices, list) else []:
        ids, text = dig(choice, "token_ids"), dig(choice, "text")
        if isinstance(ids, list) and ids:
            found.append(tuple(map(str, ids)))
        elif isinstance(text, str):
            found.append((text,))
    return found


def _shown(written: Written) -> str:
    return clipped(str([list(parts) for parts in written]))


INDEPENDENT_DRAWS = Question(
    capability=Capability.INDEPENDENT_DRAWS, tokens=CALLS * DRAWS_PER_CALL, ask=ask_independent_draws
)
NEUTRAL_DEFAULTS = Question(
    capability=Capability.NEUTRAL_DEFAULTS, tokens=3 * COPIED_TOKENS, ask=ask_neutral_defaults
)
