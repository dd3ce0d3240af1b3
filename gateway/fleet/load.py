"""How many requests each instance is serving, as far as this process knows."""

from __future__ import annotations

from collections import Counter


class Load:
    """Requests under way, by instance; one that the gateway's loop drives is one, however many its calls."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    def running(self, instance: str) -> int:
        """Requests that an instance is serving, by its key."""
        return self._running[instance]

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
        self._instance: str | None = None

    def among(self, instance: str) -> int:
        """How many requests `instance` would be serving, with this one."""
        return self._running[instance] + (self._instance != instance)

    def move(self, instance: str | None) -> None:
        """It is served by `instance` from now on; None when it has ended."""
        if self._instance is not None:
            self._running[self._instance] -= 1
            if not self._running[self._instance]:
                del self._running[self._instance]
        if instance is not None:
            self._running[instance] += 1
        self._instance = instance
