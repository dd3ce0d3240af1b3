"""Routes of the embedded backend."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import fastapi
import orjson
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from draftrunner.embedded import api
from draftrunner.embedded.answers import (
    Answer,
    ChatShape,
    CompletionShape,
    Heading,
    Shape,
    Spell,
    request_metrics,
    usage,
)
from draftrunner.embedded.engine import Engine, Failure, QueueFull
from draftrunner.embedded.errors import (
    AnswerFailed,
    BodyTooLarge,
    Busy,
    InvalidRequest,
    RequestRefused,
    UnknownModel,
)
from draftrunner.embedded.generation import Ask, Emission, Finish
from draftrunner.embedded.metrics import CONTENT_TYPE, EngineMetrics
from draftrunner.embedded.prompts import AskReader
from draftrunner.model import MAX_LOOKAHEAD, Drafter

ENGINE = "ace-embedded"
"""Who answers, in `/version` and as the owner of the model."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Room for as many prompts of several thousand token ids as the queue holds."""

CLIENT_LEFT = 499
"""Status of an answer that nobody waits for any more; it is never seen."""


Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Everything that the routes work with.

    Attributes:
        model_id: The name of the one model served.
        context_length: Most tokens that prompt and answer may have together.
        engine: Answers prompts.
        reader: Makes prompts of request bodies.
        spell: Turns a few ids into text at once, whatever else is being read.
        drafters: What the engine drafts with, by name.
        metrics: What the engine counts into.
        version: Of this program.
    """

    model_id: str
    context_length: int
    engine: Engine
    reader: AskReader
    spell: Spell
    drafters: Mapping[str, Drafter]
    metrics: EngineMetrics
    version: str


def create_app(backend: Backend) -> fastapi.FastAPI:
    """Join the routes; the engine runs while the application does."""

    @contextlib.asynccontextmanager
    async def running(_: fastapi.FastAPI) -> AsyncIterator[None]:
        backend.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(backend.engine.close)

    app = fastapi.FastAPI(title="ACE embedded backend", version=backend.version, lifespan=running)
    routes = _Routes(backend, started=int(time.time()))
    app.get("/v1/models")(routes.models)
    app.post("/v1/chat/completions", response_model=None)(routes.chat)
    app.post("/v1/completions", response_model=None)(routes.completions)
    app.post("/tokenize")(routes.tokenize)
    app.post("/detokenize")(routes.detokenize)
    app.get("/health")(routes.health)
    app.get("/version")(routes.version)
    app.get("/metrics")(routes.metrics)
    app.exception_handler(RequestRefused)(_answer_refusal)
    app.exception_handler(HTTPException)(_answer_http_exception)
    app.exception_handler(Exception)(_answer_bug)
    return app


class _Routes:
    """One method per route."""

    def __init__(self, backend: Backend, started: int) -> None:
        self._backend = backend
        self._started = started

    async def models(self) -> dict[str, Any]:
        model = {
            "id": self._backend.model_id,
            "object": "model",
            "created": self._started,
            "owned_by": ENGINE,
            "root": self._backend.model_id,
            "parent": None,
            "max_model_len": self._backend.context_length,
            "ace_score": MAX_LOOKAHEAD,
        }
        return {"object": "list", "data": [model]}

    async def chat(self, request: fastapi.Request) -> fastapi.Response:
        body = await _parsed(request, api.ChatBody)
        self._check_model(body.model)
        # Now, and not when its own turn comes: the queue may be long, or too full to take it.
        self._backend.engine.decode_plainly(body.speculation.ace_plain)
        ask = await asyncio.to_thread(self._backend.reader.chat, body)
        shape = ChatShape(self._heading("chatcmpl", body), self._backend.spell)
        return await self._answer(body, [ask], shape, request)

    async def completions(self, request: fastapi.Request) -> fastapi.Response:
        body = await _parsed(request, api.CompletionBody)
        self._check_model(body.model)
        self._backend.engine.decode_plainly(body.speculation.ace_plain)
        self._check_prompts(len(body.prompts))
        asks = await asyncio.to_thread(self._backend.reader.completion, body)
        shape = CompletionShape(self._heading("cmpl", body), self._backend.spell)
        return await self._answer(body, asks, shape, request)

    async def tokenize(self, request: fastapi.Request) -> dict[str, Any]:
        body = await _parsed(request, api.TokenizeBody)
        self._check_model(body.model)
        ids, pieces = await asyncio.to_thread(self._backend.reader.tokenize, body)
        return {
            "count": len(ids),
            "max_model_len": self._backend.context_length,
            "tokens": ids,
            "token_strs": pieces if body.return_token_strs else None,
        }

    async def detokenize(self, request: fastapi.Request) -> dict[str, Any]:
        body = await _parsed(request, api.DetokenizeBody)
        self._check_model(body.model)
        return {"prompt": await asyncio.to_thread(self._backend.reader.detokenize, body)}

    async def health(self) -> fastapi.Response:
        return fastapi.Response()

    async def version(self) -> dict[str, Any]:
        drafters = sorted(self._backend.drafters)
        return {"version": self._backend.version, "engine": ENGINE, "drafters": drafters}

    async def metrics(self) -> fastapi.Response:
        return fastapi.Response(self._backend.metrics.exposition(), media_type=CONTENT_TYPE)

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked != self._backend.model_id:
            raise UnknownModel(asked, self._backend.model_id)

    def _check_prompts(self, count: int) -> None:
        most = self._backend.engine.limits.prompts
        if count > most:
            raise InvalidRequest(f"prompt holds {count} prompts. At most {most} are served.", param="prompt")

    def _heading(self, kind: str, body: api.GenerationBody) -> Heading:
        return Heading(
            request_id=f"{kind}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self._backend.model_id,
            wants_token_ids=bool(body.return_token_ids),
        )

    async def _answer(
        self, body: api.GenerationBody, asks: Sequence[Ask], shape: Shape, request: fastapi.Request
    ) -> fastapi.Response:
        call = _Call(self._backend.engine, asks, request.headers.get("x-request-id", ""))
        if body.stream:
            return _StreamedAnswer(call, self._events(call, shape, body.wants_stream_usage))
        return await _unless_client_leaves(request, self._whole(call, shape))

    async def _whole(self, call: _Call, shape: Shape) -> fastapi.Response:
        try:
            async for index, emission in call.emissions():
                call.answers[index].add(emission)
        finally:
            call.leave()
        content = shape.whole(call.answers) | await self._accounts(call.answers)
        return fastapi.Response(orjson.dumps(content), media_type="application/json")

    async def _events(self, call: _Call, shape: Shape, wants_usage: bool) -> AsyncIterator[bytes]:
        try:
            async for index, emission in call.emissions():
                answer = call.answers[index]
                for chunk in _chunks(shape, index, answer, emission):
                    yield _event(chunk)
                answer.add(emission)
            if wants_usage:
                yield _event(shape.last_chunk() | await self._accounts(call.answers))
        except RequestRefused as error:
            yield _event(error.body())
        else:
            yield b"data: [DONE]\n\n"

    async def _accounts(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Usage, and for a single prompt its metrics."""
        accounts: dict[str, Any] = {"usage": usage(answers)}
        match answers:
            case [Answer(finish=Finish() as finish) as answer]:
                # Replaying a long shadow answer takes a while.
                drafter = self._backend.drafters[answer.ask.drafter]
                accounts["metrics"] = await asyncio.to_thread(request_metrics, answer, finish, drafter)
        return accounts


class _Call:
    """One request's prompts in the engine. Made before the answer's first byte, so that it can be refused.

    Raises:
        Busy: The queue is full.
    """

    def __init__(self, engine: Engine, asks: Sequence[Ask], request_id: str) -> None:
        self.answers = [Answer(ask) for ask in asks]
        self._deliveries: asyncio.Queue[tuple[int, Emission | Failure]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(index: int, event: Emission | Failure) -> None:
            loop.call_soon_threadsafe(self._deliveries.put_nowait, (index, event))

        try:
            self._submission = engine.submit(asks, deliver, request_id)
        except QueueFull:
            raise Busy(
                f"Not enough of the {engine.limits.prompts} places for prompts are free. "
                "Try again after a second."
            ) from None

    async def emissions(self) -> AsyncIterator[tuple[int, Emission]]:
        """Give what is added to which answer, until all are finished.

        Raises:
            AnswerFailed: One of them never will be.
        """
        unfinished = len(self.answers)
        while unfinished:
            index, event = await self._deliveries.get()
            if isinstance(event, Failure):
                raise AnswerFailed
            unfinished -= event.finish is not None
            yield index, event

    def leave(self) -> None:
        """Stop what is still being generated."""
        self._submission.cancel()


class _StreamedAnswer(StreamingResponse):
    """Server-sent events, given up when the client leaves."""

    def __init__(self, call: _Call, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.leave()


async def _parsed(request: fastapi.Request, kind: type[Body]) -> Body:
    """Read the request's body, strictly: what JSON cannot say, like half a character, is refused here."""
    read = bytearray()
    try:
        async for piece in request.stream():
            read += piece
            if len(read) > MAX_BODY_BYTES:
                raise BodyTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.")
        return kind.model_validate_json(bytes(read))
    except ClientDisconnect:
        raise InvalidRequest("The connection ended before the body did.") from None
    except ValidationError as error:
        raise InvalidRequest(*api.complaints(error)) from None


async def _unless_client_leaves(
    request: fastapi.Request, work: Coroutine[Any, Any, fastapi.Response]
) -> fastapi.Response:
    """Do `work`, or drop it as soon as nobody waits for its result."""
    tasks = working, leaving = asyncio.create_task(work), asyncio.create_task(_client_left(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else fastapi.Response(status_code=CLIENT_LEFT)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _client_left(request: fastapi.Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _chunks(shape: Shape, index: int, answer: Answer, emission: Emission) -> Iterator[dict[str, Any]]:
    """What `emission` adds to a stream; nothing while its text is held back and nobody asked for ids."""
    if not answer.token_ids and (opening := shape.opening(answer)):
        yield opening
    chunk = shape.chunk(index, answer, emission)
    if emission.text or emission.finish or emission.logprobs or "token_ids" in chunk["choices"][0]:
        yield chunk


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


async def _answer_refusal(_: fastapi.Request, error: RequestRefused) -> fastapi.Response:
    return fastapi.Response(
        orjson.dumps(error.body()), error.status, error.headers, media_type="application/json"
    )


async def _answer_http_exception(_: fastapi.Request, error: HTTPException) -> fastapi.Response:
    content = RequestRefused(f"{error.detail}. The routes are listed in /openapi.json.").body()
    content["error"] |= {"type": InvalidRequest.kind, "code": "unknown_route"}
    return fastapi.Response(
        orjson.dumps(content), error.status_code, error.headers, media_type="application/json"
    )


async def _answer_bug(request: fastapi.Request, _: Exception) -> fastapi.Response:
    return await _answer_refusal(request, AnswerFailed())
