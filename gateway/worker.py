"""One process that serves: the app as the server makes it, and what signals do to it."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process

from gateway.drain import Drain
from gateway.proxy.asgi import App
from gateway.settings import Settings

END_NOW = signal.SIGQUIT
"""Has a worker process end its drain."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Makes the app; can be sent to another process, sockets included.

    Attributes:
        operations: Bound to the operations port, where there is one.
    """

    settings: Settings
    operations: socket.socket | None

    def __call__(self) -> App:
        """The app of this process. The server calls it within its loop, its own handlers in place."""
        # Not above: a process that only starts workers needs none of what the app imports.
        from gateway.app import create_app

        drain = Drain(self.settings.drain_delay_s, self.settings.drain_timeout_s)
        _obey_signals(drain)
        return create_app(self.settings, drain=drain, operations=self.operations)


def _obey_signals(drain: Drain) -> None:
    """Have the first signal to stop begin the drain, and the second end it.

    The server's own handler, which closes its sockets, is called when the drain has come to that.
    """
    loop = asyncio.get_running_loop()
    servers_own = signal.getsignal(signal.SIGTERM)
    if not callable(servers_own):
        raise TypeError("the server has set no handler of its own before it made the app")

    def on(number: signal.Signals, act: Callable[[Callable[[], None]], None]) -> None:
        close_sockets = functools.partial(servers_own, number, None)
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(act, close_sockets))

    def begin_or_end(close_sockets: Callable[[], None]) -> None:
        act = drain.end if drain.begun else drain.begin
        act(close_sockets)

    if parent_process() is None:
        on(signal.SIGINT, begin_or_end)
        on(signal.SIGTERM, begin_or_end)
    else:
        # A terminal's Ctrl-C and some supervisors' SIGTERM come twice, of which one is the parent's. So
        # here the parent says with another signal that it means it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        on(signal.SIGTERM, drain.begin)
        on(END_NOW, drain.end)
