"""A TCP proxy in front of a real server, which keeps every byte that clients send and changes none."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Self

from tests.fakes.upstream import Received, requests_in


class ByteTap:
    """Listens on `url` and passes every connection on to `port` of this machine."""

    def __init__(self, port: int) -> None:
        self._connections: list[bytearray] = []
        tap = self

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                tap._pass_on(self.request, port)

        self._server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def requests(self, target: str) -> list[Received]:
        """Every request for `target` so far, connection by connection."""
        return [
            request
            for number, sent in enumerate(self._connections)
            for request in requests_in(io.BufferedReader(io.BytesIO(bytes(sent))), number)
            if request.target == target
        ]

    def _pass_on(self, client: socket.socket, port: int) -> None:
        kept = bytearray()
        self._connections.append(kept)
        with socket.create_connection(("127.0.0.1", port)) as server:
            answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
            answers.start()
            _copy(client, server, kept)
            answers.join()


def _copy(source: socket.socket, target: socket.socket, kept: bytearray | None = None) -> None:
    """Copy until `source` ends, and let `target` know."""
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            if kept is not None:
                kept += piece
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
