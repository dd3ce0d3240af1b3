"""The draft runner's HTTP front: replays answers, drafts for running ones, and stays joined to a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

import fastapi
import orjson
import uvicorn
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from draftrunner.drafters import Drafters, make_drafters
from draftrunner.join import joined
from draftrunner.listening import listen, own_url
from draftrunner.loop_service import IDLE_S, LOOPS_AT_ONCE, LoopRoute
from draftrunner.model import MAX_LOOKAHEAD, Origin
from draftrunner.profiles import PROFILES
from draftrunner.replay import UNKNOWN_ID, Abandoned, Replayed, replay
from draftrunner.requests import (
    CallerLeft,
    InvalidRequest,
    Lookahead,
    RequestTooLarge,
    ServiceError,
    Slots,
    Tenant,
    TokenId,
    check_bearer,
    check_known,
    valid,
)

if TYPE_CHECKING:
    from draftrunner.drafters.loading import DraftModel

MAX_IDS = 131_072
"""Most prompt and answer ids, together, in one replay."""

MAX_BODY_BYTES = 2 * 1024 * 1024
"""Room for MAX_IDS ids of 15 characters each."""

REPLAYS_AT_ONCE = 2
"""A replay holds memory in proportion to its ids, so more at once are refused rather than queued."""

logger = logging.getLogger(__name__)


AnswerId = Annotated[int, Field(strict=True, ge=UNKNOWN_ID, lt=2**31)]


class ReplayRequest(BaseModel):
    """Body of `POST /v1/replay`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # FailFast: a body of nothing but wrong ids must not cost an error object for each.
    prompt_ids: Annotated[list[TokenId], FailFast()]
    answer_ids: Annotated[list[AnswerId], FailFast()]
    drafter: str
    profile: str
    ks: Annotated[list[Lookahead], FailFast(), Field(min_length=1, max_length=MAX_LOOKAHEAD)]
    tenant: Tenant = ""
    started_at: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None

    @property
    def limit(self) -> int | None:
        """The answer's token limit, where the engine drafts none beyond it."""
        return self.max_tokens if PROFILES[self.profile].clips_at_end else None

    @property
    def origin(self) -> Origin:
        """Whose answer it is, and when its request began."""
        return Origin(tenant=self.tenant, as_of=self.started_at)


class DetokenizeRequest(BaseModel):
    """Body of `POST /v1/detokenize`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drafter: str
    ids: Annotated[list[Annotated[list[TokenId], FailFast()]], FailFast()]


def create_app(
    *,
    token: str,
    version: str,
    drafters: Drafters,
    background: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    replays_at_once: int = REPLAYS_AT_ONCE,
    loops_at_once: int = LOOPS_AT_ONCE,
    loop_idle_s: float = IDLE_S,
    draft_model: DraftModel | None = None,
) -> fastapi.FastAPI:
    """Make the service as an ASGI app.

    Args:
        token: What callers must send as bearer token, everywhere but on /healthz.
        version: What /v1/info says.
        drafters: What can be drafted with.
        background: Entered when the app starts and left when it stops.
        replays_at_once: Further replays are answered 503.
        loops_at_once: Further loops are closed at once.
        loop_idle_s: Seconds after which a loop whose gateway says nothing is closed.
        draft_model: The one that is among the drafters, if any: its facts, and its tokenizer for pairing.
    """
    app = fastapi.FastAPI(
        openapi_url=None,
        lifespan=lambda _: background(),
        exception_handlers={
            ServiceError: _answer_service_error,
            HTTPException: _answer_http_exception,
            Exception: _answer_bug,
        },
    )
    slots = Slots("replays", replays_at_once)
    authorised = [fastapi.Depends(_bearer_check(token))]

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/info", dependencies=authorised)
    async def info() -> dict[str, Any]:
        return {
            "version": version,
            "drafters": sorted(drafters),
            "profiles": sorted(PROFILES),
            "device": draft_model.device if draft_model else "cpu",
            "draft_model": draft_model.described() if draft_model else None,
        }

    @app.post("/v1/replay", dependencies=authorised)
    async def replay_answer(request: fastapi.Request) -> fastapi.Response:
        body = await _read_body(request)
        with slots.taken():
            async with _watched(request) as left:
                content = await asyncio.to_thread(replay_body, body, drafters, left.is_set)
        return fastapi.Response(content, media_type="application/json")

    @app.post("/v1/detokenize", dependencies=authorised)
    async def detokenize(request: fastapi.Request) -> fastapi.Response:
        body = await _read_body(request)
        with slots.taken():
            content = await asyncio.to_thread(detokenize_body, body, draft_model)
        return fastapi.Response(content, media_type="application/json")

    loops = LoopRoute(token=token, drafters=drafters, loops_at_once=loops_at_once, idle_s=loop_idle_s)
    app.websocket("/v1/loop")(loops.serve)

    return app


def replay_body(body: bytes, drafters: Drafters, caller_left: Callable[[], bool] = lambda: False) -> bytes:
    """Answer the JSON of a `/v1/replay` body with the JSON of its curve, or raise a ServiceError.

    The drafter then learns the answer, for later requests of its tenant.
    """
    asked = _parsed(body, drafters)
    drafter = drafters[asked.drafter][asked.profile]
    try:
        curve = replay(
            asked.prompt_ids, asked.answer_ids, drafter, asked.ks, asked.origin, asked.limit, caller_left
        )
    except Abandoned:
        raise CallerLeft from None
    drafter.learn([token for token in asked.answer_ids if token != UNKNOWN_ID], asked.origin)
    return orjson.dumps(
        {
            "drafter": asked.drafter,
            "profile": asked.profile,
            "curve": {str(k): _curve_entry(replayed) for k, replayed in curve.items()},
        }
    )


def detokenize_body(body: bytes, draft_model: DraftModel | None) -> bytes:
    """Answer the JSON of a `/v1/detokenize` body: a text for each list of ids, or raise a ServiceError."""
    asked = valid(DetokenizeRequest.model_validate_json, body)
    models = {"draft_model": draft_model} if draft_model else {}
    check_known("drafter", asked.drafter, models)
    return orjson.dumps({"texts": models[asked.drafter].texts(asked.ids)})


def run(
    *, host: str, port: int, gateway: str | None, token: str, draft_model: DraftModel | None = None
) -> None:
    """Serve until stopped.

    Args:
        host: Address to listen on. With a wildcard address, a gateway is told this machine's name.
        port: 0 takes a free one; the log says which.
        gateway: Base URL of the gateway to join, and to stay joined to; None joins none.
        token: The runner token, shared with the gateway.
        draft_model: One to draft with, next to the drafters that need no weights.

    Raises:
        StartError: The address cannot be listened on.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log each heartbeat
    version = importlib.metadata.version("ace-gateway")
    drafters = make_drafters(draft_model.drafter if draft_model else None)
    with listen(host, port) as listener:
        url = own_url(host, listener.getsockname()[1])
        announcement: dict[str, Any] = {
            "url": url,
            "node": socket.gethostname(),
            "drafters": sorted(drafters),
            "version": version,
        }
        if draft_model is not None:
            announcement["draft_model"] = draft_model.announced()

        def background() -> AbstractAsyncContextManager[None]:
            if gateway is None:
                return contextlib.nullcontext()
            return joined(gateway=gateway, token=token, announcement=announcement)

        app = create_app(
            token=token, version=version, drafters=drafters, background=background, draft_model=draft_model
        )
        logger.info("draft runner listening on %s", url)
        # Longer than the gateway keeps idle connections, so that the runner never closes one in use.
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=5,
            ws="wsproto",
            ws_max_size=MAX_BODY_BYTES,
            # Loops have a time limit of their own, and a gateway that waits for its target answers no ping.
            ws_ping_interval=None,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _bearer_check(token: str) -> Callable[[fastapi.Request], Awaitable[None]]:
    async def check(request: fastapi.Request) -> None:
        check_bearer(request, token)

    return check


@contextlib.asynccontextmanager
async def _watched(request: fastapi.Request) -> AsyncIterator[threading.Event]:
    """Set once the caller has hung up, as a gateway does when a kill stops what it has asked for."""
    left = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left.set()

    watching = asyncio.create_task(watch())
    try:
        yield left
    finally:
        watching.cancel()


async def _read_body(request: fastapi.Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise RequestTooLarge(
                    f"The body is larger than {MAX_BODY_BYTES} bytes. One replay takes {MAX_IDS} ids at most."
                )
    except ClientDisconnect:
        raise InvalidRequest("The connection ended before the body did.") from None
    return bytes(body)


def _parsed(body: bytes, drafters: Drafters) -> ReplayRequest:
    asked = valid(ReplayRequest.model_validate_json, body)
    ids = len(asked.prompt_ids) + len(asked.answer_ids)
    if ids > MAX_IDS:
        raise RequestTooLarge(
            f"prompt_ids and answer_ids hold {ids} ids. One replay takes {MAX_IDS} at most."
        )
    if asked.max_tokens is not None and asked.max_tokens < len(asked.answer_ids):
        raise InvalidRequest(
            f"max_tokens: {asked.max_tokens} is less than answer_ids holds, which is {len(asked.answer_ids)}."
        )
    if UNKNOWN_ID in asked.answer_ids[:-1]:
        raise InvalidRequest(
            f"answer_ids.{asked.answer_ids.index(UNKNOWN_ID)}: {UNKNOWN_ID} stands for an unknown id and may "
            "only be the last, because a drafter continues from those before it."
        )
    check_known("drafter", asked.drafter, drafters)
    check_known("profile", asked.profile, PROFILES)
    return asked


def _curve_entry(replayed: Replayed) -> dict[str, Any]:
    return {
        "passes": replayed.passes,
        "steps": replayed.steps,
        "draft_tokens": replayed.draft_tokens,
        "accepted_tokens": replayed.accepted_tokens,
        "accepted_by_position": replayed.accepted_by_position,
        "passes_by_drafts": {str(drafts): passes for drafts, passes in replayed.passes_by_drafts.items()},
        "tokens_per_pass": replayed.tokens_per_pass,
        "acceptance_rate": replayed.acceptance_rate,
        "mean_acceptance_length": replayed.mean_acceptance_length,
        "per_step_drafted": replayed.per_step_drafted,
        "per_step_accepted": replayed.per_step_accepted,
    }


async def _answer_service_error(_: fastapi.Request, error: ServiceError) -> fastapi.Response:
    return _error(str(error), error.status, error.code, error.kind, error.headers)


async def _answer_http_exception(request: fastapi.Request, error: HTTPException) -> fastapi.Response:
    message = (
        f"{request.method} {request.url.path[:200]} is not served here ({error.detail}). "
        "Routes: GET /healthz, GET /v1/info, POST /v1/replay, POST /v1/detokenize, WebSocket /v1/loop."
    )
    return _error(message, error.status_code, "unknown_route", "invalid_request_error", error.headers or {})


async def _answer_bug(_: fastapi.Request, __: Exception) -> fastapi.Response:
    message = "The draft runner failed on this request. Its log has the details."
    # The exception goes on to the server, which closes the connection: the client must not reuse it.
    headers = {"connection": "close"}
    return _error(message, ServiceError.status, ServiceError.code, ServiceError.kind, headers)


def _error(message: str, status: int, code: str, kind: str, headers: Mapping[str, str]) -> fastapi.Response:
    content = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return fastapi.Response(orjson.dumps(content), status, headers, media_type="application/json")
