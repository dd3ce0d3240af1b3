"""A raw-socket HTTP/1.1 client: sends the bytes it is given, and shows an answer as it stood on the wire."""

from __future__ import annotations

import io
import socket
from dataclasses import dataclass

PATIENCE_S = 10.0

FRAMING = frozenset({"connection", "keep-alive", "transfer-encoding"})
"""Headers that speak of one connection only."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response.

    Attributes:
        headers: Names in lower case, in order, repeated where they were repeated.
        whole: The body ended as its framing said it would.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool

    def header(self, name: str) -> str | None:
        """The header's only value; None without one."""
        found = self.values(name)
        assert len(found) < 2, f"{name} was sent {len(found)} times"
        return found[0] if found else None

    def values(self, name: str) -> list[str]:
        """The header's values."""
        return [value for found, value in self.headers if found == name]

    @property
    def end_to_end(self) -> tuple[int, list[tuple[str, str]], bytes, bool]:
        """All that a relay may not change: everything but framing and our request id."""
        kept = [(n, v) for n, v in self.headers if n not in FRAMING | {"x-request-id"}]
        return self.status, kept, self.body, self.whole


class RawClient:
    """One connection; use as a context manager."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream: io.BufferedReader = self._socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._stream.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def read_some(self) -> bytes:
        """Whatever arrives next; nothing once the other side has closed."""
        return self._stream.read1()

    def read_until(self, mark: bytes) -> bytes:
        """All that arrives up to a piece with `mark`; the other side must not close before it."""
        seen = b""
        while mark not in seen:
            piece = self.read_some()
            assert piece, f"closed before {mark!r}: {seen!r}"
            seen += piece
        return seen

    def read_head(self) -> tuple[int, list[tuple[str, str]]]:
        """The next answer's status and headers; informational answers are skipped."""
        while True:
            status = int(self._stream.readline().split()[1])
            headers = []
            while line := self._stream.readline().rstrip(b"\r\n").decode("latin-1"):
                name, _, value = line.partition(":")
                headers.append((name.lower(), value.strip()))
            if status >= 200:
                return status, headers

    def read_answer(self, *, head_only: bool = False) -> Answer:
        """The next answer, to the end of its body."""
        status, headers = self.read_head()
        named = dict(headers)
        if head_only or status in (204, 304):
            return Answer(status, headers, b"", whole=True)
        if named.get("transfer-encoding") == "chunked":
            return Answer(status, headers, *self._chunked())
        if "content-length" in named:
            length = int(named["content-length"])
            body = self._read(length)
            return Answer(status, headers, body, whole=len(body) == length)
        return Answer(status, headers, self._read(-1), whole=True)

    def is_closed(self) -> bool:
        """Whether the other side closes now, without another byte."""
        return self._read(1) == b""

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except ConnectionResetError:
            return b""

    def _chunked(self) -> tuple[bytes, bool]:
        body = b""
        while size := self._stream.readline().strip():
            piece = self._read(int(size, 16))
            body += piece
            if self._stream.readline() != b"\r\n":
                return body, False
            if size == b"0":
                return body, True
        return body, False


def ask(port: int, request: bytes) -> Answer:
    """Send one request on a connection of its own, and read its answer."""
    with RawClient(port) as client:
        client.send(request)
        return client.read_answer(head_only=request.startswith(b"HEAD "))


def post(body: bytes, *headers: str, path: str = "/v1/chat/completions", method: str = "POST") -> bytes:
    """The bytes of a request with a JSON body."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: gw.test",
        "Content-Type: application/json",
        *headers,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """The bytes of a request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: gw.test", *headers, "", ""]).encode("latin-1")
