"""A request's prompt as the target sees it: its token ids, or the question to `/tokenize` for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CHAT_TEMPLATE_FIELDS = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "tools",
)
"""Request fields that change the prompt's ids and that `/tokenize` takes too."""


class NoPromptIds(Exception):
    """The request has not one prompt, or one with parts that `/tokenize` may not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt.

    Attributes:
        ids: Its ids where the request itself consists of ids.
        payload: Otherwise, what to ask `/tokenize` for them; empty where ids are set.
    """

    ids: tuple[int, ...] | None = field(default=None, repr=False)
    payload: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read_prompt(endpoint: str, request: Mapping[str, Any]) -> Prompt:
    """The prompt of a chat or completions request.

    Raises:
        NoPromptIds: There is not exactly one, or not only text.
    """
    if endpoint == "chat":
        return Prompt(payload=_chat_payload(request))
    if endpoint != "completions":
        raise NoPromptIds
    prompt = request.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(_is_id(token) for token in prompt):
        return Prompt(ids=tuple(prompt))
    if not isinstance(prompt, str):
        raise NoPromptIds
    special = request.get("add_special_tokens", True)
    return Prompt(payload=text_payload(request, prompt, add_special_tokens=special))


def text_payload(
    request: Mapping[str, Any], text: str, *, add_special_tokens: object = False
) -> Mapping[str, Any]:
    """What to ask `/tokenize` for the ids of a text."""
    return {"model": request.get("model"), "prompt": text, "add_special_tokens": add_special_tokens}


def _chat_payload(request: Mapping[str, Any]) -> Mapping[str, Any]:
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(_is_text(message) for message in messages):
        raise NoPromptIds
    template = {name: request[name] for name in _CHAT_TEMPLATE_FIELDS if name in request}
    return {"model": request.get("model"), "messages": messages, "add_generation_prompt": True} | template


def _is_text(message: object) -> bool:
    """Images and sounds become ids that `/tokenize` cannot be relied on to give."""
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
