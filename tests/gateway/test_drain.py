"""The order in which a process comes to its end."""

from __future__ import annotations

import asyncio

from gateway.drain import Drain
from gateway.proxy.asgi import Message
from tests.fakes.waiting import until


class Server:
    """What a drain acts on."""

    def __init__(self) -> None:
        self.stopped = 0
        self.sent: list[Message] = []

    def stop_listening(self) -> None:
        self.stopped += 1

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def test_connections_are_taken_until_the_delay_is_over() -> None:
    server, drain = Server(), Drain(delay_s=0.01, timeout_s=600)
    drain.begin(server.stop_listening)
    assert (drain.begun, server.stopped) == (True, 0)
    await until(lambda: server.stopped == 1)
    assert not drain.over.is_set()
    drain.end(server.stop_listening)


async def test_what_is_under_way_is_cut_when_the_timeout_is_over() -> None:
    server, drain = Server(), Drain(delay_s=0.01, timeout_s=0.01)
    drain.begin(server.stop_listening)
    async with asyncio.timeout(30):
        await drain.over.wait()
    assert server.stopped == 1


async def test_a_drain_that_is_begun_again_goes_on_as_it_was() -> None:
    server, drain = Server(), Drain(delay_s=0.01, timeout_s=0.02)
    for _ in range(3):
        drain.begin(server.stop_listening)
    async with asyncio.timeout(30):
        await drain.over.wait()
    assert server.stopped == 1


async def test_an_end_waits_for_nothing_and_leaves_no_timer() -> None:
    server, drain = Server(), Drain(delay_s=0.01, timeout_s=0.01)
    drain.begin(server.stop_listening)
    drain.end(server.stop_listening)
    assert (drain.over.is_set(), server.stopped) == (True, 1)
    await asyncio.sleep(0.05)  # longer than both timers would have taken
    assert server.stopped == 1


async def test_sockets_are_closed_once_however_a_drain_ends() -> None:
    server, drain = Server(), Drain(delay_s=0, timeout_s=600)
    drain.begin(server.stop_listening)
    await until(lambda: server.stopped == 1)
    drain.end(server.stop_listening)
    drain.end(server.stop_listening)
    assert (drain.over.is_set(), server.stopped) == (True, 1)


async def test_an_end_needs_no_beginning() -> None:
    server, drain = Server(), Drain(delay_s=600, timeout_s=600)
    drain.end(server.stop_listening)
    assert (drain.begun, drain.over.is_set(), server.stopped) == (True, True, 1)


async def test_answers_are_left_alone_until_the_drain_begins() -> None:
    server, drain = Server(), Drain(delay_s=600)
    send = drain.send_of(server.send)
    head: Message = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
    body: Message = {"type": "http.response.body", "body": b"x", "more_body": True}
    await send(dict(head))
    await send(body)
    assert server.sent == [head, body]
    drain.begin(server.stop_listening)
    await send(dict(head))
    await send(body)
    assert server.sent[2]["headers"] == [(b"a", b"b"), (b"connection", b"close")]
    assert server.sent[3] is body
    drain.end(server.stop_listening)
