"""How many requests each backend is serving, as far as this process knows."""

from __future__ import annotations

from collections import Counter


class Load:
    """Requests under way, by backend; one that the gateway's loop drives is one, however many its calls."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    def running(self, backend: str) -> int:
        """Requests that `backend` is serving."""
        return self._running[backend]

    def place(self) -> Place:
        """A place for one request, which is nowhere yet."""
        return Place(self._running)


class Place:
    """Where one request is being served. Made by `Load.place`.

    Args:
        running: The counts that it is part of.
    """

    def __init__(self, running: Counter[str]) -> None:
        self._running = running
        self._backend: str | None = None

    def among(self, backend: str) -> int:
        """How many requests `backend` would be serving, with this one."""
        return self._running[backend] + (self._backend != backend)

    def move(self, backend: str | None) -> None:
        """It is served by `backend` from now on; None when it has ended."""
        if self._backend is not None:
            self._running[self._backend] -= 1
            if not self._running[self._backend]:
                del self._running[self._backend]
        if backend is not None:
            self._running[backend] += 1
        self._backend = backend
