"""A loop's answer as it goes over the wire: OpenAI's shapes, as vLLM and the embedded backend fill them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an answer ended.

    Attributes:
        reason: OpenAI's word: `stop` or `length`.
        stop: The stop string that ended it; None for an end-of-sequence.
        prompt_tokens: Length of the prompt. completion_tokens: of the answer, an end-of-sequence included.
    """

    reason: str
    stop: str | None
    prompt_tokens: int
    completion_tokens: int

    @property
    def usage(self) -> Document:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


class Shape:
    """Spells one answer.

    Args:
        chat: For chat completions, and not for completions.
        request_id: What the answer's id is made of.
        created: Unix time.
        model: The model's name, as the client gave it.
    """

    def __init__(self, *, chat: bool, request_id: str, created: int, model: str) -> None:
        self._chat = chat
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
        self._created = created
        self._model = model

    def opening(self) -> Document | None:
        """The chunk before the first text, which names the role; None where there is no role."""
        if not self._chat:
            return None
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def chunk(self, text: str, end: End | None) -> Document:
        """The chunk for a piece of text, the last one with how the answer ended."""
        said = {"delta": {"content": text}} if self._chat else {"text": text}
        return self._chunk([{"index": 0, **said, "logprobs": None, **_ending(end)}])

    def usage_chunk(self, end: End) -> Document:
        """The chunk after the last one, for clients that asked for it."""
        return {**self._chunk([]), "usage": end.usage}

    def whole(self, text: str, end: End) -> Document:
        """The answer in one piece."""
        message = {"role": "assistant", "content": text, "refusal": None}
        said = {"message": message} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, **_ending(end)}
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._response(kind, [choice]), "usage": end.usage}

    def _chunk(self, choices: list[Document]) -> Document:
        return self._response("chat.completion.chunk" if self._chat else "text_completion", choices)

    def _response(self, kind: str, choices: list[Document]) -> Document:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def _ending(end: End | None) -> Document:
    if end is None:
        return {"finish_reason": None, "stop_reason": None}
    return {"finish_reason": end.reason, "stop_reason": end.stop}
