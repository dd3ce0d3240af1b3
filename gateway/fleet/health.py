"""One cheap look at a backend: is it there, is it the same process, does it still serve the same models?"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson

from gateway.fleet.destination import Destination, destination_of
from gateway.fleet.model import Process
from gateway.fleet.processes import Sighting
from gateway.fleet.urls import AddressRefused, CheckedResolver

_MODELS_PATH = "/v1/models"
_METRICS_PATH = "/metrics"
_VERSION_PATH = "/version"
_MAX_ANSWER_BYTES = 4 * 2**20
_END_OF_TIME = 2.0**33
_ALIVE_WITHOUT_LIST = frozenset({404, 405, 429, 501})
_UNAUTHORISED = frozenset({401, 403})

_METRICS_ARE_TAKEN_AWAY = "tensorrt_llm"
"""Owner of models at servers whose `/metrics` hands out each number once: that is left to others."""

_STARTED_AT = re.compile(rb"^process_start_time_seconds[ \t]+(\S+)", re.MULTILINE)
_COUNTER = re.compile(
    rb"^((?:vllm|sglang|llamacpp):(?:prompt_tokens|generation_tokens|tokens_predicted)_total"
    rb"(?:\{[^\n]*\})?)[ \t]+(\S+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What one look at a backend found.

    Attributes:
        reason: Why it is not alive; empty when it is.
        certain: Whether one such look is enough. A server that is only slow looks like one that hangs.
        models: What it lists; None when it gave no list.
        sighting: What it shows of its process.
    """

    alive: bool
    reason: str = ""
    certain: bool = True
    models: frozenset[str] | None = None
    sighting: Sighting = field(default_factory=Sighting)


class HealthCheck(Protocol):
    """Looks at a backend. Never raises."""

    async def __call__(self, url: str, headers: Mapping[str, str], *, address: str | None = None) -> Health:
        """The health of the server at base URL `url`, asked with the backend's own credential.

        Args:
            url: Its base URL.
            headers: With the credential.
            address: Where to connect to in place of what the URL's name resolves to.
        """
        ...


class HttpHealthCheck:
    """`GET /v1/models`, on the path, host and credential that traffic uses.

    What `/metrics` and `/version` say beside it is taken in; where they say nothing, that takes nobody down.

    Args:
        session: Made by `checked_session`, so that names are checked at each connection.
        time_limit_s: Longest wait for the whole list of models; for each of the others a third of it.
    """

    def __init__(self, session: aiohttp.ClientSession, *, time_limit_s: float = 5.0) -> None:
        self._session = session
        self._time_limit_s = time_limit_s

    async def __call__(self, url: str, headers: Mapping[str, str], *, address: str | None = None) -> Health:
        """See HealthCheck."""
        try:
            return await self._ask(destination_of(url, address), headers)
        except TimeoutError:
            reason = f"GET {_MODELS_PATH} was not answered within {self._time_limit_s:g} s"
            return Health(alive=False, reason=reason, certain=False)
        except AddressRefused as error:
            return Health(alive=False, reason=str(error))
        except aiohttp.ClientConnectorDNSError as error:
            refused = isinstance(error.os_error, AddressRefused)
            reason = str(error.os_error) if refused else f"its name does not resolve: {error.os_error}"
            return Health(alive=False, reason=reason, certain=refused)
        except aiohttp.ClientConnectorError as error:
            cause = error.os_error.strerror or error.os_error
            return Health(alive=False, reason=f"no connection could be opened: {cause}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = f"GET {_MODELS_PATH} failed: {type(error).__name__}: {error}"[:300]
            return Health(alive=False, reason=reason, certain=False)

    async def _ask(self, to: Destination, headers: Mapping[str, str]) -> Health:
        async with asyncio.timeout(self._time_limit_s):
            page = await self._get(to, _MODELS_PATH, headers)
        if page.status in _UNAUTHORISED:
            reason = f"unauthorised: GET {_MODELS_PATH} answered HTTP {page.status}; check the credential"
            return Health(alive=False, reason=reason)
        if page.status in _ALIVE_WITHOUT_LIST:
            return Health(alive=True, sighting=await self._sighting(to, headers, ()))
        if page.status != 200:
            reason = f"GET {_MODELS_PATH} answered HTTP {page.status}"
            return Health(alive=False, reason=reason, certain=False)
        cards = _listed(page.body)
        if cards is None:
            reason = f"GET {_MODELS_PATH} answered HTTP 200 with {page.content_type}, not a list of models"
            return Health(alive=False, reason=reason, certain=False)
        return Health(
            alive=True,
            models=frozenset(str(card["id"]) for card in cards),
            sighting=await self._sighting(to, headers, cards),
        )

    async def _sighting(
        self, to: Destination, headers: Mapping[str, str], cards: tuple[Mapping[str, Any], ...]
    ) -> Sighting:
        first = cards[0] if cards else {}
        taken_away = first.get("owned_by") == _METRICS_ARE_TAKEN_AWAY
        metrics = b"" if taken_away else await self._body(to, _METRICS_PATH, headers)
        version = await self._body(to, _VERSION_PATH, headers)
        started_at = _STARTED_AT.search(metrics)
        return Sighting(
            process=Process(
                started_at=_moment(started_at.group(1)) if started_at else None, version=_version(version)
            ),
            created=_moment(first.get("created")),
            counters={
                series.decode("latin-1"): number
                for series, text in _COUNTER.findall(metrics)
                if (number := _number(text)) is not None
            },
        )

    async def _body(self, to: Destination, path: str, headers: Mapping[str, str]) -> bytes:
        """What a page holds that a server may lack; nothing where it does."""
        try:
            async with asyncio.timeout(self._time_limit_s / 3):
                page = await self._get(to, path, headers)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return b""
        return page.body if page.status == 200 else b""

    async def _get(self, to: Destination, path: str, headers: Mapping[str, str]) -> _Page:
        async with self._session.get(
            to.url + path,
            headers={**headers, **dict(to.headers)},
            allow_redirects=False,
            server_hostname=to.server_name,
        ) as reply:
            body = await read_body(reply, most=_MAX_ANSWER_BYTES) if reply.status == 200 else b""
            return _Page(reply.status, reply.content_type, body)


@dataclass(frozen=True, slots=True)
class _Page:
    status: int
    content_type: str
    body: bytes


def checked_session(resolver: aiohttp.abc.AbstractResolver | None = None) -> aiohttp.ClientSession:
    """A session that refuses forbidden addresses at each connection, and obeys no proxy variables.

    Args:
        resolver: Names to addresses; None for the system's.
    """
    inner = resolver or aiohttp.ThreadedResolver()
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(inner), force_close=True, use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, trust_env=False)


async def read_body(reply: aiohttp.ClientResponse, *, most: int) -> bytes:
    """An answer's body.

    Raises:
        ValueError: It has more than `most` bytes.
    """
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > most:
            raise ValueError(f"more than {most} bytes of answer")
    return bytes(body)


def _listed(body: bytes) -> tuple[Mapping[str, Any], ...] | None:
    """The cards of the models that are listed; None where there is no list."""
    data = (_object(body) or {}).get("data")
    if not isinstance(data, list):
        return None
    return tuple(card for card in data if isinstance(card, dict) and "id" in card)


def _version(body: bytes) -> str | None:
    said = (_object(body) or {}).get("version")
    return said[:100] if isinstance(said, str) and said else None


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


def _moment(said: object) -> float | None:
    """A Unix time as a page spells it; None for what is none."""
    number = _number(said)
    return number if number is not None and 0 < number < _END_OF_TIME else None


def _number(said: object) -> float | None:
    """A number as a page spells it; None for what is none."""
    if isinstance(said, bool) or not isinstance(said, bytes | int | float):
        return None
    try:
        number = float(said)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
