"""How one process comes to its end: first it is not ready, then it takes no connections, then it cuts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from gateway.proxy.asgi import Message, Send

logger = logging.getLogger(__name__)


class Drain:
    """The way from the wish that a process ends to the moment when no request is left.

    Args:
        delay_s: Seconds for which connections are still taken, so that whoever routes requests here has
            seen that this process is not ready any more.
        timeout_s: Seconds after that in which requests under way may end by themselves.

    Attributes:
        begun: The process is about to end.
        over: Set when requests that are still under way are to be cut.
    """

    def __init__(self, delay_s: float = 0.0, timeout_s: float = 0.0) -> None:
        self._delay_s, self._timeout_s = delay_s, timeout_s
        self._timers: list[asyncio.TimerHandle] = []
        self._stop_listening: Callable[[], None] | None = None
        self.begun = False
        self.over = asyncio.Event()

    def begin(self, stop_listening: Callable[[], None]) -> None:
        """Begin, in the event loop; a drain that has begun goes on as it is.

        Args:
            stop_listening: Called once, after the delay: from then on no connection is to be taken.
        """
        if self.begun:
            return
        self.begun = True
        self._stop_listening = stop_listening
        logger.info(
            "Stopping: connections are taken for %g s more, and requests under way have %g s after that.",
            self._delay_s,
            self._timeout_s,
        )
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(self._delay_s, self._stop),
            loop.call_later(self._delay_s + self._timeout_s, self.over.set),
        ]

    def end(self, stop_listening: Callable[[], None]) -> None:
        """Be over at once, begun or not."""
        self.begin(stop_listening)
        for timer in self._timers:
            timer.cancel()
        self._stop()
        self.over.set()

    def send_of(self, send: Send) -> Send:
        """`send`, which while draining tells clients to open another connection for their next request."""

        # Not a coroutine of its own: this is called for each piece of each stream.
        def to_client(message: Message) -> Any:
            if self.begun and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            return send(message)

        return to_client

    def _stop(self) -> None:
        stop, self._stop_listening = self._stop_listening, None
        if stop is not None:
            stop()
