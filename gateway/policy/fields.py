"""Which fields a request really uses, as `gateway.policy.allowed` and the classifier ask."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gateway.policy.allowed import TABLES

_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "no_stop_trim": (False,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "priority": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "separate_reasoning": (True,),
    "service_tier": ("auto",),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "store": (False,),
    "stream": (False,),
    "stream_reasoning": (True,),
    "suffix": ("",),
    "temperature": (1,),
    # Without tools both mean an ordinary answer; with tools, `tools` itself is active.
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "top_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
"""Documented default values; null is one everywhere. Fields that are not here have no other default."""

_STRUCTURED = frozenset(
    name
    for name, row in TABLES["in_engine"].row_of.items()
    if row.ruling.reason in ("tools", "structured_output")
)

MULTIMODAL = "multimodal"
PROMPT_LIST = "prompt_list"
_USAGE = "include_usage"


def is_structured(active: Collection[str]) -> bool:
    """Whether the answer is to have a form: tools or structured output."""
    return not _STRUCTURED.isdisjoint(active)


def active_fields(body: Mapping[str, object]) -> frozenset[str]:
    """Top-level fields of a request whose value is not the documented default.

    Some names stand for what no field name says: `multimodal` for a message part that is not text,
    `prompt_list` for several prompts in one call, and `stream_options.NAME` for what a stream is to carry
    besides usage at its end. Never raises, whatever the values' types are.
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
    options = body.get("stream_options")
    if isinstance(options, dict):
        yield from (f"stream_options.{name}" for name in options if name != _USAGE and options[name])


def _has_other_than_text(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and part.get("type") not in ("text", "refusal") for part in content)
