"""One cheap question to a backend: are you there, and do you still serve the same models?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import orjson

from gateway.fleet.urls import AddressRefused, CheckedResolver

_MODELS_PATH = "/v1/models"
_MAX_LIST_BYTES = 4 * 2**20
_ALIVE_WITHOUT_LIST = frozenset({404, 405, 429, 501})
_UNAUTHORISED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What one look at a backend found.

    Attributes:
        reason: Why it is not alive; empty when it is.
        certain: Whether one such look is enough. A server that is only slow looks like one that hangs.
        models: What it lists; None when it gave no list.
    """

    alive: bool
    reason: str = ""
    certain: bool = True
    models: frozenset[str] | None = None


class HealthCheck(Protocol):
    """Looks at a backend. Never raises."""

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Health:
        """The health of the server at base URL `url`, asked with the backend's own credential."""
        ...


class HttpHealthCheck:
    """`GET /v1/models`, on the path, host and credential that traffic uses.

    Args:
        session: Made by `checked_session`, so that names are checked at each connection.
        time_limit_s: Longest wait for the whole answer.
    """

    def __init__(self, session: aiohttp.ClientSession, *, time_limit_s: float = 5.0) -> None:
        self._session = session
        self._time_limit_s = time_limit_s

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Health:
        """See HealthCheck."""
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await self._ask(url, headers)
        except TimeoutError:
            reason = f"GET {_MODELS_PATH} was not answered within {self._time_limit_s:g} s"
            return Health(alive=False, reason=reason, certain=False)
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

    async def _ask(self, url: str, headers: Mapping[str, str]) -> Health:
        async with self._session.get(url + _MODELS_PATH, headers=headers, allow_redirects=False) as reply:
            status = reply.status
            if status in _UNAUTHORISED:
                reason = f"unauthorised: GET {_MODELS_PATH} answered HTTP {status}; check the credential"
                return Health(alive=False, reason=reason)
            if status in _ALIVE_WITHOUT_LIST:
                return Health(alive=True)
            if status != 200:
                reason = f"GET {_MODELS_PATH} answered HTTP {status}"
                return Health(alive=False, reason=reason, certain=False)
            models = _listed(await _read(reply))
            if models is None:
                reason = (
                    f"GET {_MODELS_PATH} answered HTTP 200 with {reply.content_type}, not a list of models"
                )
                return Health(alive=False, reason=reason, certain=False)
            return Health(alive=True, models=models)


def checked_session(resolver: aiohttp.abc.AbstractResolver | None = None) -> aiohttp.ClientSession:
    """A session that refuses forbidden addresses at each connection, and obeys no proxy variables.

    Args:
        resolver: Names to addresses; None for the system's.
    """
    inner = resolver or aiohttp.ThreadedResolver()
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(inner), force_close=True, use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, trust_env=False)


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > _MAX_LIST_BYTES:
            raise ValueError(f"more than {_MAX_LIST_BYTES} bytes of answer")
    return bytes(body)


def _listed(body: bytes) -> frozenset[str] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        return None
    return frozenset(str(entry["id"]) for entry in data if isinstance(entry, dict) and "id" in entry)
