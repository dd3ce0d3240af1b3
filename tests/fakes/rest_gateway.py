"""A gateway's REST API as a script: a real server that answers as told and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    token: str | None
    body: object


@dataclass
class RestGateway:
    """Answers each request with the next of `answers`: a status and JSON, text, or nothing."""

    url: str
    answers: list[tuple[int, object]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def next_answer(self) -> tuple[int, bytes]:
        status, body = self.answers.pop(0)
        if body is None:
            return status, b""
        return status, (body if isinstance(body, str) else json.dumps(body)).encode()


@contextmanager
def rest_gateway() -> Iterator[RestGateway]:
    """A scripted gateway on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            gateway.asked.append(Asked(self.command, self.path, self.headers.get("authorization"), body))
            status, content = gateway.next_answer()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 http.server's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 http.server's signature
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    gateway = RestGateway(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
