"""Calls to the server being probed: bounded, never redirected, and scrubbed of our own credentials."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

MAX_ANSWER_BYTES = 4 * 1024 * 1024
EVIDENCE_CHARACTERS = 200

REFUSALS = frozenset({400, 404, 405, 415, 422, 501})
"""Statuses that answer a question with no. 401, 403, 429 and 5xx say nothing about a capability."""

_SHORTEST_SECRET = 4


class NoAnswer(Exception):
    """The server gave no HTTP answer; the message says what happened instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP answer.

    Attributes:
        path: What was asked.
        text: The body, without our credentials.
        document: The body as JSON; None when it is none.
    """

    path: str
    status: int
    content_type: str
    text: str = field(repr=False)
    document: Any = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the server understood the question, and its answer is no."""
        return self.status in REFUSALS

    @property
    def evidence(self) -> str:
        """What was seen, in one short line."""
        return f"{self.path} answered HTTP {self.status}: {clipped(self.text)}"

    def dig(self, *steps: str | int) -> Any:
        """What the JSON body holds at this path; None where the path leads nowhere."""
        return dig(self.document, *steps)

    def events(self) -> list[Any]:
        """The JSON documents of an event stream, in order; empty when it is no such stream."""
        if not self.content_type.startswith("text/event-stream"):
            return []
        data = [
            line.removeprefix("data:").strip() for line in self.text.split("\n") if line.startswith("data:")
        ]
        documents = [_parsed(text) for text in data if text != "[DONE]"]
        return [document for document in documents if isinstance(document, dict)]


class Wire:
    """Asks one server.

    Args:
        client: Makes the calls, with the server's URL and headers; its owner closes it.
        headers: The credentials among its headers, never to be shown.
    """

    def __init__(self, client: httpx.AsyncClient, headers: Mapping[str, str]) -> None:
        self._client = client
        self._secrets = _secrets(headers)

    async def get(self, path: str) -> Reply:
        """Ask for a resource.

        Raises:
            NoAnswer: There was no HTTP answer.
        """
        return await self._send(self._client.build_request("GET", path))

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send a JSON body.

        Raises:
            NoAnswer: There was no HTTP answer.
        """
        return await self._send(self._client.build_request("POST", path, json=body))

    async def _send(self, request: httpx.Request) -> Reply:
        path = request.url.path
        try:
            response = await self._client.send(request, stream=True)
            try:
                body = await _read(response)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise NoAnswer(f"{path}: {_what_happened(error)}") from None
        text = self._scrubbed(body.decode(errors="replace")).replace("\r\n", "\n").replace("\r", "\n")
        content_type = response.headers.get("content-type", "").lower()
        return Reply(
            path=path,
            status=response.status_code,
            content_type=content_type,
            text=text,
            document=_parsed(text),
        )

    def _scrubbed(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def dig(value: Any, *steps: str | int) -> Any:
    """What a JSON value holds at a path; None where the path leads nowhere."""
    for step in steps:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def is_count(value: Any) -> bool:
    """Whether a JSON value can count something."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def clipped(text: str) -> str:
    """One printable line of text, not longer than evidence may be."""
    line = " ".join(text.split())
    shown = "".join(character if character.isprintable() else "?" for character in line)
    return shown if len(shown) <= EVIDENCE_CHARACTERS else shown[: EVIDENCE_CHARACTERS - 1] + "…"


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise NoAnswer(f"{response.request.url.path}: more than {MAX_ANSWER_BYTES} bytes of answer")
    return bytes(body)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """Every spelling of our credentials that a server could send back, longest first."""
    values = [value for value in headers.values() if len(value) >= _SHORTEST_SECRET]
    words = [word for value in values for word in value.split() if len(word) >= _SHORTEST_SECRET]
    words = [word for word in words if word.lower() not in ("bearer", "basic")]
    encoded = [base64.b64encode(text.encode()).decode() for text in [*values, *words]]
    return sorted({*values, *words, *encoded}, key=len, reverse=True)


def _what_happened(error: httpx.HTTPError) -> str:
    match error:
        case httpx.ConnectTimeout():
            return "no connection in time"
        case httpx.ConnectError():
            return f"no connection ({clipped(str(error)) or 'refused'})"
        case httpx.TimeoutException():
            return "no answer in time"
        case httpx.RemoteProtocolError():
            return "what answers does not speak HTTP/1.1"
        case _:
            # Not its message: a complaint about a header would quote the header.
            return f"the call failed ({type(error).__name__})"


def are_ids(value: Any) -> bool:
    """Whether a JSON value is a list of token ids, not an empty one."""
    return isinstance(value, list) and bool(value) and all(is_count(token) for token in value)
