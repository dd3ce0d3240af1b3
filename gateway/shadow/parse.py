"""From the bytes of a request and its answer to what replay needs, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.evidence.engine_metrics import EngineNumbers, read_engine_metrics
from gateway.evidence.prompts import NoPromptIds, Prompt, read_prompt, text_payload
from gateway.evidence.sse import SseParser
from gateway.shadow.answer import FinishedAnswer
from gateway.shadow.reasons import Skipped, SkipReason

_COMPLETE = frozenset({"stop", "length"})
_TOOL_CALLS = frozenset({"tool_calls", "function_call"})
_UNSAID = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """An answer that has one text, ended well, and was counted by its engine.

    Attributes:
        prompt_ids: The prompt's ids where the request itself consists of ids.
        prompt_payload: Otherwise, what to ask `/tokenize` for them; empty where prompt_ids are set.
        text_payload: What to ask `/tokenize` for the answer's ids; None for an empty text.
        max_tokens: Most tokens that the answer could have had; None where that is not known.
        may_end_unseen: The answer may end in a token that is not in its text (end-of-sequence).
        numbers: The engine's counts and times; prompt_tokens and completion_tokens are known.
    """

    prompt_ids: tuple[int, ...] | None = field(repr=False)
    prompt_payload: Mapping[str, Any] = field(repr=False)
    text_payload: Mapping[str, Any] | None = field(repr=False)
    max_tokens: int | None
    may_end_unseen: bool
    prompt_tokens: int
    completion_tokens: int
    numbers: EngineNumbers


def read_answer(answer: FinishedAnswer) -> ReadAnswer:
    """Read a finished answer.

    Raises:
        Skipped: with the reason why it cannot be replayed.
    """
    request = _request(answer.request_body)
    reply = _Reply()
    for document in _documents(answer):
        reply.take(document)
    text = reply.only_text()
    if reply.finish_reason == "stop" and reply.may_be_cut(bool(request.get("stop"))):
        raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
    numbers = read_engine_metrics(reply.usage, reply.metrics)
    if numbers.prompt_tokens is None or numbers.completion_tokens is None:
        raise Skipped(SkipReason.NO_USAGE)
    prompt = _prompt(answer.facts.endpoint, request)
    return ReadAnswer(
        prompt_ids=prompt.ids,
        prompt_payload=prompt.payload,
        text_payload=text_payload(request, text) if text else None,
        max_tokens=_limit(request, numbers.completion_tokens, reply.finish_reason),
        may_end_unseen=reply.finish_reason == "stop",
        prompt_tokens=numbers.prompt_tokens,
        completion_tokens=numbers.completion_tokens,
        numbers=numbers,
    )


def _limit(request: Mapping[str, Any], completion_tokens: int, finish_reason: object) -> int | None:
    """What the answer ran into, or what the request says, if an answer of this length fits into it."""
    if finish_reason == "length":
        return completion_tokens
    stated = request.get("max_completion_tokens") or request.get("max_tokens")
    return stated if type(stated) is int and stated >= completion_tokens else None


class _Reply:
    """Adds up the documents of one answer: a single JSON body, or the events of a stream."""

    def __init__(self) -> None:
        self.usage: object = None
        self.metrics: object = None
        self.finish_reason: object = None
        self._stop_reason: object = _UNSAID
        self._texts: list[str] = []
        self._indices: set[int] = set()

    def take(self, document: Mapping[str, Any]) -> None:
        if document.get("error"):
            raise Skipped(SkipReason.BACKEND_ERROR)
        self.usage = document.get("usage") or self.usage
        self.metrics = document.get("metrics") or self.metrics
        choices = document.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
        for choice in choices:
            self._take_choice(choice)

    def only_text(self) -> str:
        """The text of the only choice, once it has ended by itself or at its length limit."""
        if self.finish_reason is None:
            raise Skipped(SkipReason.INCOMPLETE_ANSWER)
        if self.finish_reason in _TOOL_CALLS or len(self._indices) > 1:
            raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
        if self.finish_reason not in _COMPLETE:
            raise Skipped(SkipReason.INCOMPLETE_ANSWER)
        return "".join(self._texts)

    def may_be_cut(self, stop_strings: bool) -> bool:
        """Whether a stop string may have cut the text inside a token.

        Where stop strings were asked for, only an explicit null (vLLM's word for end-of-sequence)
        or a token id rules that out.
        """
        if self._stop_reason is _UNSAID:
            return stop_strings
        return isinstance(self._stop_reason, str)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        self._indices.add(_index(choice))
        self._texts.append(_visible_text(choice))
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str):
            self.finish_reason = finish_reason
            self._stop_reason = choice.get("stop_reason", _UNSAID)


def _index(choice: Mapping[str, Any]) -> int:
    index = choice.get("index", 0)
    if not isinstance(index, int):
        raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
    return index


def _visible_text(choice: Mapping[str, Any]) -> str:
    """The choice's text, if it is all that was generated.

    Whatever a message holds beside role and content (tool calls, reasoning, a refusal, something
    new) was generated too, and its tokens are not in the text.
    """
    message = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not (content is None or isinstance(content, str)):
        raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
    if any(value for name, value in message.items() if name not in ("role", "content")):
        raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
    return content or ""


def _request(body: bytes) -> Mapping[str, Any]:
    request = _json(body)
    if request.get("echo") or request.get("suffix"):
        raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
    return request


def _documents(answer: FinishedAnswer) -> Iterator[Mapping[str, Any]]:
    if not answer.content_type.lower().startswith("text/event-stream"):
        yield _json(answer.answer_body)
        return
    parser = SseParser()
    for event in [*parser.feed(answer.answer_body), parser.finish()]:
        if event is not None and event.data and event.data != b"[DONE]":
            yield _json(event.data)


def _json(text: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Skipped(SkipReason.IDS_NOT_RECOVERABLE)
    return value


def _prompt(endpoint: str, request: Mapping[str, Any]) -> Prompt:
    try:
        return read_prompt(endpoint, request)
    except NoPromptIds:
        raise Skipped(SkipReason.IDS_NOT_RECOVERABLE) from None
