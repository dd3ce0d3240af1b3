"""Which request fields an executor may not speculate under, and which fields a request really uses.

The table is data: executor -> field -> the reason that a bypassed request's record carries. What it does
not list is harmless: under `in_engine` the engine itself decides what a field means, speculating or not.
A field in the table is never removed from the request; the request is served plainly instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

_NEVER_SPECULATED: Mapping[str, tuple[str, ...]] = {
    # Waits for a canary of its kind, on every executor.
    "tools": ("tools", "tool_choice", "functions", "function_call"),
    "structured_output": (
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    ),
    "multimodal": ("multimodal", "modalities", "audio"),
}

_NOT_IN_ENGINE: Mapping[str, tuple[str, ...]] = {
    **_NEVER_SPECULATED,
    # Engines refuse these beside speculation, or would answer them lossily.
    "logit_bias": ("logit_bias",),
    "min_p": ("min_p",),
    "penalties": ("presence_penalty", "frequency_penalty", "repetition_penalty"),
    "beam_search": ("use_beam_search",),
    # Several answers in one response have no per-request counts.
    "several_answers": ("n", "best_of"),
    "prompt_list": ("prompt_list",),
    # The prompt comes back, or is more than what the answer continues.
    "echo": ("echo",),
    "suffix": ("suffix",),
    "prompt_logprobs": ("prompt_logprobs",),
}


def _by_field(by_reason: Mapping[str, tuple[str, ...]]) -> Mapping[str, str]:
    return {name: reason for reason, names in by_reason.items() for name in names}


BYPASSED_FIELDS: Mapping[str, Mapping[str, str]] = {"in_engine": _by_field(_NOT_IN_ENGINE)}

_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "stream": (False,),
    "suffix": ("",),
    "temperature": (1,),
    # Without tools both mean an ordinary answer; with tools, `tools` itself is active.
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "top_p": (1,),
    "use_beam_search": (False,),
}
"""Documented default values; null is one everywhere. Fields that are not here have no other default."""

MULTIMODAL = "multimodal"
PROMPT_LIST = "prompt_list"


def why_bypassed(executor: str, active: Collection[str]) -> tuple[str, str] | None:
    """The first field, by name, that `executor` may not speculate under, and the reason; None without one."""
    table = BYPASSED_FIELDS[executor]
    found = sorted(name for name in active if name in table)
    return (found[0], table[found[0]]) if found else None


def is_structured(active: Collection[str]) -> bool:
    """Whether the answer is to have a form: tools or structured output."""
    names = (*_NEVER_SPECULATED["tools"], *_NEVER_SPECULATED["structured_output"])
    return any(name in active for name in names)


def active_fields(body: Mapping[str, object]) -> frozenset[str]:
    """Top-level fields of a request whose value is not the documented default.

    Two names stand for what no field name says: `multimodal` for a message part that is not text and
    `prompt_list` for several prompts in one call. Never raises, whatever the values' types are.
    """
    named = (name for name, value in body.items() if not _is_default(name, value))
    return frozenset((*named, *_unnamed(body)))


def _is_default(name: str, value: object) -> bool:
    return value is None or any(_same(value, default) for default in _DEFAULTS.get(name, ()))


def _same(value: object, default: object) -> bool:
    # True equals 1 in Python, but is no number in JSON.
    return isinstance(value, bool) is isinstance(default, bool) and value == default


def _unnamed(body: Mapping[str, object]) -> Iterator[str]:
    messages = body.get("messages")
    if isinstance(messages, list) and any(_has_other_than_text(message) for message in messages):
        yield MULTIMODAL
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        yield PROMPT_LIST


def _has_other_than_text(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and part.get("type") not in ("text", "refusal") for part in content)
