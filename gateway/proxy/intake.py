"""Reads a request: its bytes as they are, and the facts that a policy may see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.errors import BodyTooLarge, MalformedRequest, UnsupportedEncoding
from gateway.policy.fields import active_fields
from gateway.policy.model import Facts, Workload
from gateway.policy.workload import classify
from gateway.proxy.asgi import Receive
from gateway.proxy.client_watch import ClientLeft
from gateway.proxy.headers import RawHeaders, first
from gateway.proxy.json_text import read_json
from gateway.proxy.routes import Route

Endpoint = Literal["chat", "completions", "other"]
ENDPOINTS: Mapping[Route, Endpoint] = {
    Route.CHAT: "chat",
    Route.COMPLETIONS: "completions",
    Route.OTHER: "other",
}
EDITABLE = ("vllm_xargs", "stream_options")
"""Request fields that a dialect may have to edit, so their values are kept."""

_OBJECT = re.compile(rb"\s*\{")
_DISCARD_S = 2.0
_ABSURD_TEMPERATURE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A request for a backend.

    Attributes:
        target: Path and query, as received.
        body: As received, byte for byte.
        editable: Values of the EDITABLE fields that the body has.
    """

    method: str
    target: str
    headers: RawHeaders = field(repr=False)
    body: bytes = field(repr=False)
    facts: Facts
    editable: Mapping[str, Any] = field(repr=False)


class RequestBody:
    """A request's body, still in the socket.

    Args:
        headers: The request's.
        receive: ASGI's.
        limit: Bytes that are taken at most.
    """

    def __init__(self, headers: RawHeaders, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._length = first(headers, b"content-length")
        self._client_waits = first(headers, b"expect") is not None
        has_body = self._length not in (None, b"0") or first(headers, b"transfer-encoding") is not None
        self.ended = not has_body

    async def read(self) -> bytes:
        """The whole of it.

        Raises:
            BodyTooLarge: It is, or says it is, larger than the limit.
            ClientLeft: The client closed its connection first.
        """
        if self._length is not None and int(self._length) > self._limit:
            raise BodyTooLarge(self._limit)
        self._client_waits = False
        pieces: list[bytes] = []
        size = 0
        while True:
            piece = await self._next()
            size += len(piece)
            if size > self._limit:
                raise BodyTooLarge(self._limit)
            pieces.append(piece)
            if self.ended:
                return b"".join(pieces)

    async def discard(self) -> None:
        """Take what a refused client is still sending, so that it reads the answer and not a reset.

        Gives up after another limit's worth of bytes or two seconds; `ended` says whether it got through.
        """
        if self._client_waits:
            return
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while not self.ended and size <= self._limit:
                    size += len(await self._next())

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self.ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece


async def read_request(
    route: Route,
    body: RequestBody,
    *,
    method: str,
    target: str,
    headers: RawHeaders,
    request_id: str,
    tenant: str,
) -> InferenceRequest:
    """Read the body, and from it and the headers what a policy may see.

    Raises:
        RequestError: The body is too large, compressed, or not what the route takes.
        ClientLeft: The client closed its connection first.
    """
    _refuse_compressed(headers)
    content = await body.read()
    endpoint = ENDPOINTS[route]
    document = _passed_through(content) if endpoint == "other" else _inference(content)
    model = document.get("model")
    facts = Facts(
        request_id=request_id,
        endpoint=endpoint,
        model=model if isinstance(model, str) else "",
        tenant=tenant,
        workload=_stated_workload(headers) or classify(endpoint, document),
        temperature=_temperature(document.get("temperature")),
        stream=document.get("stream") is True,
        fields=active_fields(document),
    )
    return InferenceRequest(
        method=method,
        target=target,
        headers=headers,
        body=content,
        facts=facts,
        editable={name: document[name] for name in EDITABLE if name in document},
    )


def _refuse_compressed(headers: RawHeaders) -> None:
    encoding = (first(headers, b"content-encoding") or b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        raise UnsupportedEncoding(
            f"The request body has Content-Encoding {encoding[:40].decode('latin-1')!r}. "
            "Send it uncompressed; only identity is taken."
        )


def _inference(body: bytes) -> dict[str, Any]:
    """The body of a route that generates: an object that names a model."""
    try:
        document = read_json(body)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise MalformedRequest(f"The request body is not valid JSON: {error.msg} ({where}).") from None
    if not isinstance(document, dict):
        raise MalformedRequest(f"The request body is {_kind(document)}. It has to be a JSON object.")
    if "model" not in document:
        raise MalformedRequest("The request body has no `model`. Name one that /v1/models lists.")
    if not isinstance(document["model"], str):
        raise MalformedRequest(
            f"`model` is {_kind(document['model'])}. It has to be a string that /v1/models lists."
        )
    return document


def _passed_through(body: bytes) -> dict[str, Any]:
    """The body of any other route, where it is an object."""
    if not _OBJECT.match(body):
        return {}
    try:
        document = read_json(body)
    except json.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _temperature(stated: object) -> float | None:
    """As stated, if any server could take it; the backend refuses the rest."""
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return None
    return stated if abs(stated) < _ABSURD_TEMPERATURE else None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _stated_workload(headers: RawHeaders) -> Workload | None:
    stated = first(headers, b"x-ace-workload")
    if stated is None:
        return None
    word = stated.decode("latin-1").strip().lower()
    return Workload(word) if word in set(Workload) else Workload.OTHER
