"""Calls to backends over one pool; the HTTP client's exceptions become ours here."""

from __future__ import annotations

import asyncio
import io
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway.errors import (
    BackendBrokeOff,
    BackendError,
    BackendHungUp,
    BackendTimeout,
    BackendUnreachable,
    GatewayStopping,
)
from gateway.fleet.credentials import read_credential
from gateway.fleet.destination import destination_of
from gateway.fleet.model import Backend
from gateway.fleet.urls import AddressRefused
from gateway.proxy.headers import RawHeaders, first

KEPT_IDLE_S = 3.0
"""Well below the 5 s after which common servers close an idle connection, so that the two rarely race."""

_OURS_NOT_THE_LIBRARYS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_LONGEST_HEADER = 64 * 1024
_LARGE_BODY = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Longest waits for a backend; an answer as a whole may take any time."""

    connect_s: float = 5.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as a backend is to receive it, except for the backend's own key.

    Attributes:
        target: Path and query, as on the wire.
    """

    method: str
    target: str
    headers: Sequence[tuple[str, str]] = field(repr=False)
    body: bytes = field(repr=False)


class Answer(Protocol):
    """What a client is to get: a head, and a body that is still to come."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> RawHeaders:
        """In order."""
        ...

    def header(self, name: bytes) -> str:
        """The first value of the header called `name` (lower case); empty without one."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            BackendError: It ends before its time.
        """
        ...

    def close(self) -> None:
        """Let go of it, ended or not."""
        ...


class Reply:
    """A backend's answer, whose head has arrived."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        backend: str,
        idle_s: float,
        on_close: Callable[[Reply], None],
    ) -> None:
        self.status = response.status
        self.headers: RawHeaders = response.raw_headers
        self._response = response
        self.backend = backend
        self._idle_s = idle_s
        self._on_close = on_close

    def header(self, name: bytes) -> str:
        """The header's first value; empty without one."""
        return (first(self.headers, name) or b"").decode("latin-1")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, undecoded.

        Raises:
            BackendBrokeOff: The connection ended before the body did.
            BackendTimeout: Nothing arrived for the idle timeout.
            GatewayStopping: It was cut.
        """
        body = self._response.content
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    chunk = await body.readany()
            except TimeoutError:
                raise BackendTimeout(self.backend, self._idle_s, "byte", "ACE_IDLE_TIMEOUT_S") from None
            except (aiohttp.ClientError, OSError):
                raise BackendBrokeOff(self.backend) from None
            if not chunk:
                return
            yield chunk

    def cut(self) -> None:
        """End the body before its time."""
        self._response.content.set_exception(GatewayStopping(self.backend))

    def close(self) -> None:
        """Give the connection back if the body has ended, and cut it if it has not."""
        self._response.close()
        self._on_close(self)


class BackendPool:
    """Connections to all backends. Made outside a loop, used in one; close it in the same.

    Args:
        timeouts: Longest waits.
        resolver: Names to addresses; None for the system's.
    """

    def __init__(self, *, timeouts: Timeouts, resolver: AbstractResolver | None = None) -> None:
        self._timeouts = timeouts
        self._resolver = resolver
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._in_flight: Counter[str] = Counter()
        self._replies: set[Reply] = set()
        self._cut = False

    def in_flight(self, instance: str) -> int:
        """Calls to an instance, by its key, that have not ended."""
        return self._in_flight[instance]

    async def open(self, backend: Backend, call: Call, *, fresh: bool = False) -> Reply:
        """Send `call` and wait for the head of the answer. The caller closes the reply.

        Args:
            backend: Where to.
            call: What.
            fresh: On a connection of its own, because a kept one has just failed.

        Raises:
            BackendError: One of its kinds; what went wrong, and whether another backend may be tried.
            GatewayStopping: The pool was cut.
        """
        if self._cut:
            raise GatewayStopping(backend.name)
        headers = list(call.headers)
        if backend.credential:
            headers.append(("authorization", f"Bearer {read_credential(backend.name, backend.credential)}"))
        session = self._fresh_session() if fresh else self._kept_session()
        seen = SimpleNamespace(reused=False)
        self._in_flight[backend.key] += 1
        try:
            with self._our_errors(backend.name, seen):
                to = destination_of(backend.url, backend.address)
                async with asyncio.timeout(self._timeouts.first_byte_s):
                    response = await session.request(
                        call.method,
                        URL(to.url + call.target, encoded=True),
                        headers=[*headers, *to.headers],
                        data=_payload(call.body),
                        allow_redirects=False,
                        trace_request_ctx=seen,
                        server_hostname=to.server_name,
                    )
        except BaseException:
            self._ended(backend.key)
            raise
        reply = Reply(response, backend.name, self._timeouts.idle_s, self._closed)
        self._replies.add(reply)
        return reply

    async def cut(self) -> None:
        """End every call under way with GatewayStopping, and open none any more."""
        self._cut = True
        for reply in self._replies:
            reply.cut()
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()

    def _closed(self, reply: Reply) -> None:
        self._replies.discard(reply)
        self._ended(reply.backend)

    def _ended(self, instance: str) -> None:
        self._in_flight[instance] -= 1
        if self._in_flight[instance] <= 0:
            del self._in_flight[instance]

    @contextmanager
    def _our_errors(self, backend: str, seen: SimpleNamespace) -> Iterator[None]:
        try:
            yield
        except AddressRefused:
            raise BackendUnreachable(backend, "its address is one that is never connected to") from None
        except (aiohttp.ClientConnectorError, aiohttp.ClientConnectorCertificateError) as error:
            raise BackendUnreachable(backend, _cause(error)) from None
        except aiohttp.ConnectionTimeoutError:
            cause = f"not within {self._timeouts.connect_s:g} s; ACE_CONNECT_TIMEOUT_S allows more"
            raise BackendUnreachable(backend, cause) from None
        except TimeoutError:
            waited = self._timeouts.first_byte_s
            raise BackendTimeout(backend, waited, "answer", "ACE_FIRST_BYTE_TIMEOUT_S") from None
        except aiohttp.ClientResponseError:
            message = f"Backend {backend!r} sent an answer that is not HTTP/1.1. Check its URL."
            raise BackendError(message) from None
        except (aiohttp.ClientError, OSError) as error:
            if seen.reused and _not_a_byte(error):
                raise BackendHungUp(backend) from None
            raise GatewayStopping(backend) if self._cut else BackendBrokeOff(backend) from None

    def _kept_session(self) -> aiohttp.ClientSession:
        if self._kept is None:
            self._kept = self._session(
                aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_IDLE_S, resolver=self._resolver)
            )
        return self._kept

    def _fresh_session(self) -> aiohttp.ClientSession:
        if self._fresh is None:
            self._fresh = self._session(
                aiohttp.TCPConnector(limit=0, force_close=True, resolver=self._resolver)
            )
        return self._fresh

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        connect_s = self._timeouts.connect_s
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_OURS_NOT_THE_LIBRARYS,
            timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
            trace_configs=[_noting_reuse()],
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    """The library writes a file in pieces, and warns of large bytes."""
    return io.BytesIO(body) if len(body) > _LARGE_BODY else body or None


def _noting_reuse() -> aiohttp.TraceConfig:
    async def note(_session: object, context: SimpleNamespace, _params: object) -> None:
        context.trace_request_ctx.reused = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
    return config


def _cause(error: aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError) -> str:
    """What the operating system said, without addresses: the client reads this too."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve to an address that may be used"
    if isinstance(error, aiohttp.ClientSSLError):
        return "TLS failed"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno)
    return type(error).__name__


def _not_a_byte(error: Exception) -> bool:
    """Whether the connection closed without any of the answer: a partial head comes as the message."""
    return not isinstance(error, aiohttp.ServerDisconnectedError) or isinstance(error.message, str)
