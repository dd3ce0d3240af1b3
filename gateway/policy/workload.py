"""classify(): the kind of work a request asks for, by plain rules that anyone can check by reading them.

The rules look at the system message and at both ends of the last user message, where instructions stand,
so the cost does not grow with the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from gateway.policy.fields import active_fields, is_structured
from gateway.policy.model import Workload

_END_CHARACTERS = 2000
_LOOKED_AT = 50
"""Messages from the end, and parts of a message, that are looked through at most."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """What tells a workload: one of some words, and then every pattern. Words are cheap to look for."""

    workload: Workload
    words: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]


def _sign(workload: Workload, words: str, *patterns: str) -> _Sign:
    compiled = tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)
    return _Sign(workload, frozenset(words.split()), compiled)


_CODE_VERBS = "fix refactor rewrite complete implement debug rename write edit review"
_SOURCES = "context passage passages document documents excerpt excerpts source sources article"
_TELLING = "write compose invent tell continue imagine"


def _one_of(words: str) -> str:
    return rf"\b(?:{'|'.join(words.split())})\b"


_SIGNS: tuple[_Sign, ...] = (
    _sign(Workload.CODE, "def", r"^[ \t]*(?:async[ \t]+)?def[ \t]+\w+[ \t]*\("),
    _sign(Workload.CODE, "class", r"^[ \t]*class[ \t]+\w+[ \t]*[(:{]"),
    _sign(Workload.CODE, "function", r"^[ \t]*(?:export[ \t]+)?(?:async[ \t]+)?function\b[ \t]*\w*[ \t]*\("),
    _sign(Workload.CODE, "include", r"^[ \t]*#include[ \t]*[<\"]"),
    _sign(
        Workload.CODE,
        _CODE_VERBS,
        _one_of(_CODE_VERBS)
        + r"[^\n]{0,60}\b(?:code|function|method|class|script|program|unit tests?|bug)\b",
    ),
    _sign(Workload.SUMMARISE, "summary summarise summarize summarising summarizing tldr condense"),
    _sign(
        Workload.RAG,
        _SOURCES,
        rf"^[^\w\n]*{_one_of(_SOURCES)}[^\n]{{0,20}}:|<{_one_of(_SOURCES)}"
        rf"|\b(?:the|this|these|following|above|below|given|provided)[ \t]+{_one_of(_SOURCES)}",
        r"\?|\b(?:question|quot(?:e|ing)|cit(?:e|ing)|answer)\b",
    ),
    _sign(
        Workload.CREATIVE,
        _TELLING,
        _one_of(_TELLING)
        + r"[^\n]{0,60}\b(?:story|tale|poem|haiku|limerick|song|lyrics|novel|fiction|dialogue|scene|fable)\b",
    ),
)
"""In the order in which they are looked for."""


def classify(endpoint: Literal["chat", "completions", "other"], body: object) -> Workload:
    """The workload of a request, when nobody says it in a header.

    Never raises, whatever the body is; what shows no sign is `chat`, what has no text is `other`.
    """
    if endpoint == "other" or not isinstance(body, dict):
        return Workload.OTHER
    if is_structured(active_fields(body)):
        return Workload.STRUCTURED
    texts = list(_chat_texts(body) if endpoint == "chat" else _prompt_texts(body))
    if not any(texts):
        return Workload.OTHER
    return _told_by("\n".join(_both_ends(text) for text in texts).lower())


def _told_by(text: str) -> Workload:
    if "```" in text:
        return Workload.CODE
    words = set(re.findall(r"\w+", text))
    for sign in _SIGNS:
        if not words.isdisjoint(sign.words) and all(pattern.search(text) for pattern in sign.patterns):
            return sign.workload
    return Workload.CHAT


def _both_ends(text: str) -> str:
    if len(text) <= 2 * _END_CHARACTERS:
        return text
    return f"{text[:_END_CHARACTERS]}\n{text[-_END_CHARACTERS:]}"


def _chat_texts(body: dict[str, object]) -> Iterator[str]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    for message in messages[:1]:
        if _role(message) in ("system", "developer"):
            yield _content(message)
    for message in islice(reversed(messages), _LOOKED_AT):
        if _role(message) == "user":
            yield _content(message)
            return


def _prompt_texts(body: dict[str, object]) -> Iterator[str]:
    prompt = body.get("prompt")
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    if isinstance(first, str):
        yield first


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _content(message: dict[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content[:_LOOKED_AT] if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
