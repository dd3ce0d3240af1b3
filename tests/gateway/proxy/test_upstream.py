from __future__ import annotations

import threading
from contextlib import ExitStack

from gateway.proxy.upstream import KEPT_IDLE_S, Timeouts
from tests.fakes.raw_http import RawClient, ask, post
from tests.fakes.upstream import PATIENCE_S, Conversation, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at, serving

REQUEST = post(b'{"model":"m1","stream":true}')


def test_idle_connections_are_given_up_well_before_servers_close_them() -> None:
    assert KEPT_IDLE_S <= 4


def test_there_is_no_hidden_cap_on_calls_in_flight() -> None:
    """300 streams are open at one moment, and none waits for another to end."""
    everyone = threading.Barrier(300, timeout=PATIENCE_S)

    def script(conversation: Conversation) -> None:
        conversation.start_stream()
        everyone.wait()
        conversation.chunk(b"data: [DONE]\n\n")
        conversation.end_stream()

    with serving(script) as (_, gateway), ExitStack() as clients:
        waiting = [clients.enter_context(RawClient(gateway.port)) for _ in range(300)]
        for client in waiting:
            client.send(REQUEST)
        assert all(client.read_answer().whole for client in waiting)


def test_a_hung_backend_keeps_nobody_from_another() -> None:
    with Upstream(Conversation.wait_for_hang_up) as hung, Upstream() as well, ExitStack() as clients:
        backends = [backend_at(hung, "hung", models=("m2",)), backend_at(well, "well")]
        gateway = clients.enter_context(Gateway(backends))
        for _ in range(50):
            clients.enter_context(RawClient(gateway.port)).send(post(b'{"model":"m2"}'))
        for _ in range(50):
            hung.next_request()
        assert gateway.pool.in_flight("hung") == 50
        assert ask(gateway.port, REQUEST).status == 200


def test_connecting_has_a_limit_of_its_own() -> None:
    """Nothing listens at an address that swallows packets; the wait is the connect timeout's."""
    swallowing = "http://192.0.2.1:9"
    timeouts = Timeouts(connect_s=0.2, first_byte_s=60)
    with Gateway([backend_at(swallowing)], timeouts=timeouts) as gateway:
        answer = ask(gateway.port, REQUEST)
        assert gateway.records.next_access().ending == "backend_unreachable"
    assert answer.status == 502
