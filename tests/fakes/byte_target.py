"""A target whose tokens are bytes, so that an answer can be cut anywhere: inside characters and stop strings.

It answers every prompt with the answer it was given. After anything else than a prefix of that answer it
says something else, so a caller that loses or repeats a token is found out. Prompts end with TURN. Plain
decoding is an engine's: a token at a time, with the embedded backend's own text rules. Serve `app` with
`served`.
"""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from draftrunner.embedded.text import AnswerText

END = 256
SPECIAL = 257
"""A token that engines leave out of their text, and `/detokenize` spells out."""
BEGIN, TURN = 300, 301
_SPELLED = {END: "<end>", SPECIAL: "<special>", BEGIN: "<begin>", TURN: "<turn>"}

Document = dict[str, Any]


def ids_of(text: str) -> tuple[int, ...]:
    """The bytes of a text."""
    return tuple(text.encode())


def text_of(ids: Sequence[int], *, special: bool) -> str:
    """The text of ids; special tokens are spelled out, or left out."""
    pieces = [bytes([token]) if token < END else _SPELLED.get(token, "").encode() * special for token in ids]
    return b"".join(pieces).decode(errors="replace")


@dataclass
class ByteTarget:
    """One server for the model `m1`.

    Attributes:
        answer: The ids that it answers every prompt with; END follows, for ever.
        refuses: Asked before each generating call, with its body; a status refuses it.
        missing: Paths that it does not serve.
        breaks_off: A plain continuation ends without a word after that many tokens; None lets it end well.
        speaks_up: Called with the path of each POST, and awaited before it is answered.
        skips_special: Whether `/detokenize` can leave special tokens out.
        asked: Every POST so far: path and body.
        gone: Paths of POSTs whose caller left before they were answered.
    """

    answer: tuple[int, ...] = ()
    refuses: Callable[[Document], int | None] = lambda body: None
    missing: frozenset[str] = frozenset()
    breaks_off: int | None = None
    speaks_up: Callable[[str], Any] | None = None
    skips_special: bool = False
    asked: list[tuple[str, Document]] = field(default_factory=list)
    gone: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def reset(self, answer: Sequence[int], **behaviour: Any) -> None:
        """Answer with something else from now on, and behave well but for `behaviour`."""
        self.__init__(answer=tuple(answer), **behaviour)  # type: ignore[misc]

    @property
    def app(self) -> Starlette:
        paths = ["/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions"]
        return Starlette(routes=[Route(path, self._answer, methods=["POST"]) for path in paths])

    def calls(self, kind: str) -> list[Document]:
        """The bodies of one kind of call: `verify`, `plain` or a path."""
        return [body for path, body in self.asked if kind in (path, _kind(path, body))]

    async def _answer(self, request: Request) -> Response:
        path, body = request.url.path, await request.json()
        self.asked.append((path, body))
        if self.speaks_up is not None:
            speaking = asyncio.ensure_future(self.speaks_up(path))
            leaving = asyncio.ensure_future(_left(request))
            await asyncio.wait([speaking, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not speaking.done():
                self.gone.put(path)
            speaking.cancel()
            leaving.cancel()
        if path in self.missing:
            return JSONResponse({"error": {"message": "Not Found"}}, 404)
        if path == "/tokenize":
            return JSONResponse({"tokens": self._prompt(body), "count": 0})
        if path == "/detokenize":
            spelled = not (self.skips_special and body.get("skip_special_tokens"))
            return JSONResponse({"prompt": text_of(body["tokens"], special=spelled)})
        if status := self.refuses(body):
            return JSONResponse({"error": {"message": "no", "code": "refused"}}, status)
        return self._generate(path, body)

    def _prompt(self, body: Document) -> list[int]:
        if "messages" in body:
            turns = [token for message in body["messages"] for token in (*ids_of(message["content"]), TURN)]
            return [BEGIN, *turns]
        prompt = body["prompt"]
        return [BEGIN, *ids_of(prompt), TURN] if isinstance(prompt, str) else list(prompt)

    def _generate(self, path: str, body: Document) -> Response:
        if _kind(path, body) == "verify":
            words = body.get("vllm_xargs", {})
            return JSONResponse(self._scored(body, words) if "ace_score" in words else self._fanned(body))
        plain = _Plain(self, self._prompt(body), body, chat="chat" in path)
        if body.get("stream"):
            return StreamingResponse(plain.events(self.breaks_off), media_type="text/event-stream")
        return JSONResponse(plain.whole())

    def _fanned(self, body: Document) -> Document:
        choices = []
        for place, prompt in enumerate(body["prompt"]):
            token = self.choice(prompt)
            ended = token == END
            text = "" if ended else text_of([token], special=False).replace("\ufffd", "")
            finish = "stop" if ended else "length"
            choices.append({"index": place, "text": text, "token_ids": [token], "finish_reason": finish})
        return {"choices": choices[::-1]}

    def _scored(self, body: Document, words: Document) -> Document:
        kept = len(body["prompt"]) - words["ace_score"]
        contexts = [body["prompt"][:length] for length in range(kept, len(body["prompt"]) + 1)]
        ids = [self.choice(context) for context in contexts]
        return {"choices": [], "ace_score": {"choices": ids, "ends": [token == END for token in ids]}}

    def choice(self, context: Sequence[int]) -> int:
        """The answer's next token, if what follows the prompt is a prefix of it; otherwise something else."""
        begun = tuple(context[len(context) - list(context)[::-1].index(TURN) :])
        if begun != self.answer[: len(begun)]:
            return sum(context) % 100
        return (*self.answer, END)[len(begun)]


class _Plain:
    """Plain decoding of one answer, as the embedded backend does it."""

    def __init__(self, target: ByteTarget, prompt: list[int], body: Document, *, chat: bool) -> None:
        stop = body.get("stop") or []
        self._stops = [stop] if isinstance(stop, str) else stop
        self._most = body.get("max_completion_tokens") or body.get("max_tokens") or 1000
        self._target, self._prompt, self._body, self._chat = target, prompt, body, chat
        self._count = 0

    def whole(self) -> Document:
        passes = list(self._passes())
        text, ending = "".join(text for _, text, _ in passes), passes[-1][2]
        message = {"role": "assistant", "content": text, "refusal": None}
        said = {"message": message} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, **ending}
        return self._response("chat.completion", [choice]) | {"usage": self._usage()}

    async def events(self, breaks_off: int | None) -> AsyncIterator[str]:
        if self._chat:
            delta = {"role": "assistant", "content": ""}
            yield self._event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])
        for token, text, ending in self._passes():
            if self._count - 1 == breaks_off:
                return
            said = {"delta": {"content": text}} if self._chat else {"text": text}
            ids = {"token_ids": [token]} if self._body.get("return_token_ids") else {}
            if text or ids or ending["finish_reason"]:
                yield self._event([{"index": 0, **said, "logprobs": None, **ending, **ids}])
        if (self._body.get("stream_options") or {}).get("include_usage"):
            yield self._event([], usage=self._usage())
        yield "data: [DONE]\n\n"

    def _passes(self) -> Iterator[tuple[int, str, Document]]:
        context, shown = list(self._prompt), AnswerText(lambda ids: text_of(ids, special=False), self._stops)
        reason = None
        while reason is None:
            token = self._target.choice(context)
            context.append(token)
            self._count += 1
            matched = None if token == END else shown.push(token)
            if token == END or matched:
                reason = "stop"
            elif self._count == self._most:
                reason = "length"
            if reason:
                shown.finish()
            yield token, shown.take(), {"finish_reason": reason, "stop_reason": matched}

    def _usage(self) -> Document:
        total = len(self._prompt) + self._count
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": self._count,
            "total_tokens": total,
        }

    def _event(self, choices: list[Document], **more: Any) -> str:
        document = self._response("chat.completion.chunk", choices) | more
        return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"

    def _response(self, kind: str, choices: list[Document]) -> Document:
        kind = kind if self._chat else "text_completion"
        return {"id": "plain", "object": kind, "created": 1, "model": "m1", "choices": choices}


def _kind(path: str, body: Document) -> str:
    if path != "/v1/completions":
        return path
    words = body.get("vllm_xargs") or {}
    fanned = body.get("max_tokens") == 1 and isinstance(body["prompt"], list) and body["prompt"][:1]
    return "verify" if "ace_score" in words or (fanned and isinstance(fanned[0], list)) else "plain"


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
