"""A load balancer: passes each TCP connection on to the next of several servers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence


class Balancer:
    """Passes bytes both ways, and knows nothing of HTTP; use as a context manager.

    Attributes:
        ports: Where connections go, in turns; may be replaced at any time.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        self._count = 0
        self._connections: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Balancer:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in self._connections:
            connection.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                port = self.ports[self._count % len(self.ports)]
                self._count += 1
                connection = threading.Thread(target=_serve, args=(client, port))
                self._connections.append(connection)
                connection.start()


def _serve(client: socket.socket, port: int) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        back = threading.Thread(target=_pass_on, args=(server, client))
        back.start()
        _pass_on(client, server)
        back.join()


def _pass_on(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            to.sendall(data)
    for end in (source, to):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def balanced(*urls: str) -> Iterator[Balancer]:
    """A running balancer before the servers at these URLs."""
    with Balancer([int(url.rpartition(":")[2]) for url in urls]) as balancer:
        yield balancer
