"""A backend with a script: a raw-socket HTTP/1.1 server that sends any bytes at any time.

It records exactly what it received and when its peer closed. It does nothing by itself: no header is added,
no framing is checked, and a script may break every rule.
"""

from __future__ import annotations

import contextlib
import io
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

PATIENCE_S = 10.0
"""How long anything here waits before it fails the test; nothing waits that long in a test that passes."""


@dataclass(slots=True)
class Received:
    """One request, as it stood on the wire.

    Attributes:
        connection: Counts the connections of this upstream, from 0.
        header_lines: Without line ends, in order.
        hung_up: Set when the peer has closed its end.
    """

    connection: int
    method: str
    target: str
    header_lines: list[bytes]
    body: bytes
    hung_up: threading.Event = field(default_factory=threading.Event)

    def values(self, name: str) -> list[str]:
        """Values of every header called `name`, whatever its case."""
        split = (line.decode("latin-1").partition(":") for line in self.header_lines)
        return [value.strip() for found, _, value in split if found.lower() == name.lower()]


class Conversation:
    """What a script does with one request: say bytes, wait, and end the connection as it likes."""

    def __init__(self, connection: socket.socket, request: Received) -> None:
        self._connection = connection
        self.request = request
        self.ended = False

    def send(self, *pieces: bytes) -> None:
        """Send each piece in a write of its own."""
        for piece in pieces:
            self._connection.sendall(piece)

    def answer(self, body: bytes = b"{}", *, status: str = "200 OK", headers: Iterable[str] = ()) -> None:
        """Send a whole answer with a Content-Length."""
        lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        self.send(head.encode("latin-1") + body)

    def start_stream(self, *headers: str, content_type: str = "text/event-stream") -> None:
        """Send the head of a chunked answer."""
        lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", *headers, "Transfer-Encoding: chunked"]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def chunk(self, *pieces: bytes) -> None:
        """Send each piece as an HTTP chunk in a write of its own."""
        self.send(*(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces))

    def end_stream(self) -> None:
        """Send the last chunk."""
        self.send(b"0\r\n\r\n")

    def stream(self, *pieces: bytes) -> None:
        """Send a whole chunked event stream."""
        self.start_stream()
        self.chunk(*pieces)
        self.end_stream()

    def close(self) -> None:
        """Close the connection in the ordinary way."""
        self.ended = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close the connection with a TCP reset, once the script has returned."""
        self.ended = True
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def wait_for_hang_up(self) -> bool:
        """Say nothing until the peer has closed; False if it never does."""
        self._connection.settimeout(PATIENCE_S)
        try:
            closed = self._connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            closed = True
        self.ended = True
        if closed:
            self.request.hung_up.set()
        return closed


Script = Callable[[Conversation], object]


def always_ok(conversation: Conversation) -> None:
    """A script that answers `{}`."""
    conversation.answer()


class Upstream:
    """The server; use as a context manager. A connection is kept as long as scripts leave it open.

    Attributes:
        script: Run for each request; may be replaced at any time.
        requests: All that was received, in order of arrival.
        connections: How many were accepted.
    """

    def __init__(self, script: Script = always_ok) -> None:
        self.script = script
        self.requests: list[Received] = []
        self.connections = 0
        self._arrivals = queue.SimpleQueue[Received]()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Upstream:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def next_request(self) -> Received:
        """The next request in order of arrival; waits for it."""
        return self._arrivals.get(timeout=PATIENCE_S)

    def stop(self) -> None:
        """Refuse new connections and close those that are open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up_on_all()

    def hang_up_on_all(self) -> None:
        """Close every open connection, idle ones too."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(connection)
                number = self.connections
                # Counted before it is served: whoever has an answer sees its connection counted.
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            for request in requests_in(stream, number):
                self.requests.append(request)
                self._arrivals.put(request)
                conversation = Conversation(connection, request)
                self.script(conversation)
                if conversation.ended:
                    break
        self._open.discard(connection)


def requests_in(stream: io.BufferedReader, connection: int) -> Iterator[Received]:
    """Every request that a client has sent over one connection."""
    while request_line := stream.readline():
        method, target, _ = request_line.decode("latin-1").split()
        header_lines: list[bytes] = []
        while line := stream.readline().rstrip(b"\r\n"):
            header_lines.append(line)
        request = Received(connection, method, target, header_lines, b"")
        request.body = _body(stream, request)
        yield request


def _body(stream: io.BufferedReader, request: Received) -> bytes:
    if "chunked" in request.values("transfer-encoding"):
        return b"".join(_chunks(stream))
    return stream.read(int((request.values("content-length") or ["0"])[0]))


def _chunks(stream: io.BufferedReader) -> Iterator[bytes]:
    while size := int(stream.readline(), 16):
        yield stream.read(size)
        stream.readline()
    stream.readline()
