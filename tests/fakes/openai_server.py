"""A scripted OpenAI-compatible server whose every capability can be taken away. Serve `app` with `served`.

Its "model" is greedy unless asked otherwise and continues a text as it went on before, so repetitive prompts
can be drafted for. A penalty makes it go on with something new; draws are keyed by seed and position.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from draftrunner.drafters.ngram import NgramDrafter
from draftrunner.profiles import EMBEDDED
from draftrunner.replay import replay

EVERYTHING = frozenset(
    {
        "chat",
        "completions",
        "stream",
        "stream_usage",
        "token_id_prompts",
        "prompt_lists",
        "return_token_ids",
        "logprobs",
        "tokenize",
        "tokenize_chat",
        "detokenize",
        "scored",
        "independent_draws",
        "neutral_defaults",
        "penalties",
        "in_engine",
        "load_gauge",
    }
)

Document = dict[str, Any]


@dataclass
class OpenAIServer:
    """One server.

    Attributes:
        can: What it is able to do; what it is not is ignored in requests, or refused if `strict`.
        card: More fields of its model's entry in /v1/models.
        version: What /version says; None for no such route.
        metrics: What /metrics says; None for no such route.
        key: The bearer token that it wants; its complaint quotes what was sent instead.
        answers: Paths that are answered with a given status (and body) whatever is asked.
        hangs: Paths that are never answered.
        spoil: Changes a generated answer before it is sent: `spoil(request, answer)`.
        token_s: Seconds that a streamed token takes.
        generated: Tokens generated so far.
        running: What /metrics says are running.
        asked: Every POST so far: path and body.
    """

    can: frozenset[str] = EVERYTHING
    strict: bool = False
    models: tuple[str, ...] = ("m",)
    owned_by: str = "acme"
    card: Document = field(default_factory=lambda: {"max_model_len": 4096})
    version: Document | None = None
    metrics: str | None = None
    key: str | None = None
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    hangs: frozenset[str] = frozenset()
    spoil: Callable[[Document, Document], None] = lambda request, answer: None
    token_s: float = 0.0
    generated: int = 0
    running: int = 0
    asked: list[tuple[str, Document]] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=dict)

    def without(self, *names: str) -> OpenAIServer:
        """Itself, unable to do what is named."""
        assert set(names) <= EVERYTHING
        self.can -= set(names)
        return self

    @property
    def app(self) -> Starlette:
        routes = ["/v1/models", "/version", "/v1/chat/completions", "/v1/completions"]
        routes += ["/tokenize", "/detokenize", "/metrics"]
        return Starlette(routes=[Route(path, self._answer, methods=["GET", "POST"]) for path in routes])

    def ids_of(self, text: str) -> list[int]:
        return [self.words.setdefault(word, 1000 + len(self.words)) for word in text.split()]

    def text_of(self, ids: list[int]) -> str:
        by_id = {number: word for word, number in self.words.items()}
        return "".join(f" {by_id.get(token, f'<{token}>')}" for token in ids)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path in self.hangs:
            while (await request.receive())["type"] != "http.disconnect":
                continue
        if path in self.answers:
            status, body = self.answers[path]
            kind = "text/html" if body.startswith("<") else "application/json"
            return Response(body, status_code=status, media_type=kind)
        sent = request.headers.get("authorization", "")
        if self.key is not None and sent != f"Bearer {self.key}":
            return _error(401, f"Incorrect API key provided: {sent}")
        if path == "/v1/models":
            card = {"object": "model", "owned_by": self.owned_by, **self.card}
            return JSONResponse({"object": "list", "data": [{"id": model, **card} for model in self.models]})
        if path == "/metrics":
            return self._metrics()
        if path == "/version":
            return JSONResponse(self.version) if self.version is not None else _error(404, "Not Found")
        body = await request.json()
        self.asked.append((path, body))
        if path == "/tokenize":
            return self._tokenize(body)
        if path == "/detokenize":
            return self._detokenize(body)
        return self._generate(path, body)

    def _metrics(self) -> Response:
        if self.metrics is not None:
            return Response(self.metrics)
        if "load_gauge" not in self.can:
            return _error(404, "Not Found")
        series = {"num_requests_running": self.running, "generation_tokens_total": self.generated}
        lines = (f'vllm:{name}{{engine="0",model_name="m"}} {float(value)}' for name, value in series.items())
        return Response("\n".join(("# TYPE vllm:num_requests_running gauge", *lines, "")))

    def _tokenize(self, body: Document) -> Response:
        wanted = "tokenize_chat" if "messages" in body else "tokenize"
        if not {"tokenize", wanted} <= self.can:
            return _error(404 if wanted == "tokenize" else 400, "Not Found")
        ids = self._chat_ids(body) if "messages" in body else self.ids_of(body["prompt"])
        return JSONResponse({"count": len(ids), "max_model_len": 4096, "tokens": ids})

    def _detokenize(self, body: Document) -> Response:
        if "detokenize" not in self.can:
            return _error(404, "Not Found")
        return JSONResponse({"prompt": self.text_of(body["tokens"])})

    def _generate(self, path: str, body: Document) -> Response:
        chat = path == "/v1/chat/completions"
        if ("chat" if chat else "completions") not in self.can:
            return _error(404, "Not Found")
        for name, able in (("return_token_ids", "return_token_ids"), ("vllm_xargs", "in_engine")):
            if self.strict and name in body and able not in self.can:
                return _error(400, f"extra fields not permitted: {name}")
        prompts = [self._chat_ids(body)] if chat else self._prompts(body["prompt"])
        if prompts is None:
            return _error(400, "prompt: Input should be a valid string")
        answer = self._answer_to(body, chat, prompts)
        self.spoil(body, answer)
        if body.get("stream") and "stream" in self.can:
            return StreamingResponse(self._events(body, answer, chat), media_type="text/event-stream")
        return JSONResponse(answer)

    def _prompts(self, prompt: Any) -> list[list[int]] | None:
        if isinstance(prompt, str):
            return [self.ids_of(prompt)]
        if all(isinstance(token, int) for token in prompt):
            return [prompt] if "token_id_prompts" in self.can else None
        if "prompt_lists" not in self.can:
            return None
        return [self.ids_of(one) if isinstance(one, str) else one for one in prompt]

    def _chat_ids(self, body: Document) -> list[int]:
        return [1, *(token for message in body["messages"] for token in self.ids_of(message["content"])), 2]

    def _answer_to(self, body: Document, chat: bool, prompts: list[list[int]]) -> Document:
        written = [self._continued(body, prompt) for prompt in prompts]
        count = sum(len(ids) for ids in written)
        self.generated += count
        answer: Document = {
            "choices": [self._choice(body, chat, place, ids) for place, ids in enumerate(written)],
            "usage": {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": count},
            "metrics": {"speculative_decoding": self._speculation(body, prompts[0], written[0])},
        }
        draft = body.get("vllm_xargs", {}).get("ace_score")
        if draft is not None and "scored" in self.can:
            answer["ace_score"] = self._score(body, prompts[0], draft)
        if body.get("return_token_ids") and "return_token_ids" in self.can:
            for place, choice in enumerate(answer["choices"]):
                choice["token_ids"] = written[place]
                (answer if chat else choice)["prompt_token_ids"] = prompts[place]
        return answer

    def _choice(self, body: Document, chat: bool, place: int, ids: list[int]) -> Document:
        choice: Document = {"index": place, "finish_reason": "length", "logprobs": None}
        choice |= (
            {"message": {"role": "assistant", "content": self.text_of(ids)}}
            if chat
            else {"text": self.text_of(ids)}
        )
        if body.get("logprobs") and "logprobs" in self.can:
            numbers = [-0.5 for _ in ids]
            chat_form = {"content": [{"token": "t", "logprob": number} for number in numbers]}
            choice["logprobs"] = chat_form if chat else {"token_logprobs": numbers}
        return choice

    def _score(self, body: Document, prompt: list[int], draft: int) -> Document:
        contexts = [prompt[: len(prompt) - draft + taken] for taken in range(draft + 1)]
        return {"choices": [self._next(body, ids) for ids in contexts], "ends": [False for _ in contexts]}

    def _continued(self, body: Document, prompt: list[int]) -> list[int]:
        context = [*prompt]
        for _ in range(body["max_tokens"]):
            context.append(self._next(body, context))
        return context[len(prompt) :]

    def _next(self, body: Document, context: list[int]) -> int:
        """Goes on as the text went on where its last token stood before; otherwise with something new."""
        if body.get("temperature", 0) > 0:
            return self._draw(body.get("seed"), len(context))
        earlier = [place for place, token in enumerate(context[:-1]) if token == context[-1]]
        copies = earlier and not self._penalised(body)
        return context[earlier[-1] + 1] if copies else 100 + len(context)

    def _draw(self, seed: int | None, position: int) -> int:
        if seed is None:
            seed = random.getrandbits(32) if "independent_draws" in self.can else 0
        return random.Random(f"{seed} {position}").randrange(2000, 1_000_000)

    def _penalised(self, body: Document) -> bool:
        default = 1.0 if "neutral_defaults" in self.can else 1.1
        return (body.get("repetition_penalty", default) if "penalties" in self.can else default) != 1

    def _speculation(self, body: Document, prompt: list[int], written: list[int]) -> Document | None:
        words = body.get("vllm_xargs", {}) if "in_engine" in self.can else {}
        if words.get("ace_mode") not in ("shadow", "prod"):
            return None
        k = words["ace_k"]
        counts = replay(prompt, written, NgramDrafter(EMBEDDED), [k])[k]
        return {
            "acceptance_histogram": [counts.per_step_accepted.count(j) for j in range(k + 1)],
            "num_spec_steps": counts.steps,
            "num_accepted_draft_tokens": counts.accepted_tokens,
            "num_draft_tokens": counts.draft_tokens,
            "num_spec_tokens": k,
        }

    async def _events(self, body: Document, answer: Document, chat: bool) -> AsyncIterator[str]:
        choice = answer["choices"][0]
        words = (choice["message"]["content"] if chat else choice["text"]).split(" ")[1:]
        ids = choice.get("token_ids", [None] * len(words))
        for word, token in zip(words, ids, strict=True):
            delta: Document = {"delta": {"content": f" {word}"}} if chat else {"text": f" {word}"}
            if token is not None:
                delta["token_ids"] = [token]
            yield _event({"choices": [{"index": 0, "finish_reason": None, **delta}]})
            await asyncio.sleep(self.token_s)
        yield _event({"choices": [{"index": 0, "finish_reason": "length", "delta": {}}]})
        if body.get("stream_options", {}).get("include_usage") and "stream_usage" in self.can:
            yield _event({"choices": [], "usage": answer["usage"], "metrics": answer["metrics"]})
        yield "data: [DONE]\n\n"


def _event(document: Document) -> str:
    return f"data: {json.dumps(document)}\n\n"


def _error(status: int, message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": status}
    return JSONResponse({"error": error}, status_code=status)
