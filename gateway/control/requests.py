"""What the REST routes take: bodies and queries, checked before anything is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect

from gateway.errors import MalformedRequest, RequestError
from gateway.policy.load import MAX_POLICY_BYTES
from gateway.policy.model import Action, Mode, Seconds
from gateway.policy.overlays import OverlayKind
from gateway.policy.refusals import refusals

MAX_BODY_BYTES = 1 << 20

Model = TypeVar("Model", bound=BaseModel)


class RefusedFields(MalformedRequest):
    """Fields of a body or query that are not known, missing, or have a value that is not allowed.

    Args:
        lines: One complaint for each field.
        first: The path of the first one, OpenAI's `error.param`.
    """

    def __init__(self, lines: list[str], first: str | None) -> None:
        super().__init__("\n".join(lines))
        self._first = first

    def body(self) -> dict[str, Any]:
        """The answer in OpenAI's error shape."""
        shape = super().body()
        shape["error"]["param"] = self._first
        return shape


class BodyBeyondLimit(RequestError):
    """More body bytes than any request to the control plane has to have."""

    status, code = 413, "request_too_large"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NewKey(_Strict):
    """A key to issue."""

    name: str
    tenant: str


class AnnouncedDraftModel(_Strict):
    """The draft model that a runner has loaded."""

    name: str = Field(max_length=253)
    fingerprint: str = Field(max_length=64)
    vocabulary_size: int = Field(ge=1, lt=2**31)


class RunnerJoin(_Strict):
    """A draft runner's word that it is there."""

    url: str = Field(max_length=500)
    node: str = Field(max_length=253)
    drafters: list[str] = Field(max_length=64)
    version: str = Field(max_length=64)
    draft_model: AnnouncedDraftModel | None = None


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("one_line", "one line of printable characters")
    return text


Author = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_line)]
Reason = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_one_line)]
Pattern = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_one_line)]


class OverlayScope(_Strict):
    """What an overlay holds for; an absent condition holds for all."""

    tenant: Pattern | None = None
    model: Pattern | None = None
    backend: Pattern | None = None
    rule: Pattern | None = None


class NewOverlay(_Strict):
    """An overlay to put in force."""

    kind: OverlayKind
    scope: OverlayScope = OverlayScope()
    value: Mode | Annotated[int, Field(strict=True)] | None = None
    author: Author = "admin"
    reason: Reason
    lasts: Seconds | None = None


class NewKill(_Strict):
    """A kill of everything, or of what the conditions name."""

    tenant: Pattern | None = None
    model: Pattern | None = None
    backend: Pattern | None = None
    author: Author = "admin"
    reason: Reason = "no reason given"
    lasts: Seconds | None = None


class Lifting(_Strict):
    """Who lifts it."""

    author: Author = "admin"


class OverlaysWanted(_Strict):
    """Which overlays to show."""

    all: bool = False
    limit: int = Field(default=100, ge=1, le=1000)


class NewPolicy(_Strict):
    """A policy to put in force in place of another."""

    text: str = Field(max_length=MAX_POLICY_BYTES)
    based_on: str = Field(min_length=1, max_length=64)
    author: Author = "admin"
    reason: Reason


class RollBack(_Strict):
    """An earlier policy to put in force again."""

    revision: str = Field(min_length=1, max_length=64)
    author: Author = "admin"
    reason: Reason


class HistoryWanted(_Strict):
    """How much of the history to show."""

    limit: int = Field(default=50, ge=1, le=1000)


class DiffWanted(_Strict):
    """Which two policies to compare; the one in force with the one before it."""

    before: str | None = Field(default=None, max_length=64)
    after: str | None = Field(default=None, max_length=64)


class StagesWanted(_Strict):
    """Which stage records to show."""

    limit: int = Field(default=100, ge=1, le=1000)
    mode: Mode | None = None
    action: Action | None = None
    model: str | None = None
    request_id: str | None = None
    after: float | None = None


def json_body(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """A dependency that reads a JSON body as `model`."""

    async def read(request: Request) -> Model:
        return checked(model, await json_of(request), "body")

    return read


def query_of(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """A dependency that reads the query string as `model`."""

    async def read(request: Request) -> Model:
        return checked(model, dict(request.query_params), "query")

    return read


def takes_body(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI page says of a route whose body `json_body` reads."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def takes_query(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI page says of a route whose query `query_of` reads."""
    fields = model.model_json_schema()["properties"]
    return {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in fields.items()
        ]
    }


async def json_of(request: Request) -> Any:
    """The request's body as a JSON value.

    Raises:
        MalformedRequest: It is no JSON.
        BodyBeyondLimit: It is larger than any request to the control plane has to be.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise BodyBeyondLimit(
                    f"The body is larger than {MAX_BODY_BYTES} bytes, which no route here needs."
                )
    except ClientDisconnect:
        raise MalformedRequest("The client left before its body had arrived.") from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"The body is not JSON: {error}.") from None


def checked(model: type[Model], given: object, where: str) -> Model:
    """The values in `given` as `model`.

    Raises:
        RefusedFields: Names every field that is refused, and what was allowed.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = refusals(error, model, given)
    paths = [".".join(map(str, refusal.path)) for refusal in found]
    lines = [f"{where}: {path or 'it'} {refusal.text}" for path, refusal in zip(paths, found, strict=True)]
    raise RefusedFields(lines, paths[0] or None)
