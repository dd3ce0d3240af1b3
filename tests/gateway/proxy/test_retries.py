"""Another backend is tried only when the request cannot have run."""

from __future__ import annotations

import pytest

from gateway.fleet.model import BackendState
from gateway.proxy.retry_budget import RetryBudget
from gateway.proxy.upstream import Timeouts
from tests.fakes.raw_http import RawClient, ask, post
from tests.fakes.upstream import Conversation, Script, Upstream
from tests.gateway.proxy.harness import Gateway, backend_at, prod_policy, serving

REQUEST = post(b'{"model":"m1"}')
NOBODY = "http://127.0.0.1:1"

LIMITED: dict[str, Script] = {
    "429": lambda c: c.answer(
        b'{"error":1}',
        status="429 Too Many Requests",
        headers=["Retry-After: 30", "x-ratelimit-remaining-requests: 0"],
    ),
    "503": lambda c: c.answer(
        b"busy",
        status="503 Service Unavailable",
        headers=["Retry-After: Fri, 31 Dec 2027 23:59:59 GMT"],
    ),
    "401": lambda c: c.answer(b"{}", status="401 Unauthorized", headers=["WWW-Authenticate: Bearer"]),
    "400": lambda c: c.answer(b'{"error":"context"}', status="400 Bad Request"),
    "404": lambda c: c.answer(b'{"error":"model"}', status="404 Not Found"),
    "422": lambda c: c.answer(b'{"detail":[]}', status="422 Unprocessable Entity"),
    "500": lambda c: c.answer(b"oops", status="500 Internal Server Error"),
}


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize("script", LIMITED.values(), ids=LIMITED.keys())
def test_an_error_answer_passes_unchanged_with_its_headers(script: Script, stream: bytes) -> None:
    request = post(b'{"model":"m1","stream":%s}' % stream)
    with serving(script) as (up, gateway):
        direct, through = ask(up.port, request), ask(gateway.port, request)
        assert gateway.records.next_access().ending == "completed"
        assert len(up.requests) == 2
    assert through.end_to_end == direct.end_to_end


@pytest.mark.parametrize("status", ["429", "503"])
def test_a_busy_backend_is_answered_for_by_another(status: str) -> None:
    with Upstream(LIMITED[status]) as busy, Upstream() as free:
        with Gateway([backend_at(busy, "busy"), backend_at(free, "free")]) as gateway:
            assert ask(gateway.port, REQUEST).status == 200
            record = gateway.records.next_access()
        assert (len(busy.requests), len(free.requests)) == (1, 1)
    assert (record.backend, record.retries, record.status) == ("free", 1, 200)


def test_when_all_are_busy_the_last_ones_answer_passes_unchanged() -> None:
    with (
        Upstream(LIMITED["503"]) as a,
        Upstream(LIMITED["429"]) as b,
        Gateway([backend_at(a, "a"), backend_at(b, "b")]) as gateway,
    ):
        answer = ask(gateway.port, REQUEST)
    assert (answer.status, answer.header("retry-after")) == (429, "30")


@pytest.mark.parametrize("status", ["400", "401", "404", "422", "500"])
def test_other_errors_are_not_tried_elsewhere(status: str) -> None:
    with Upstream(LIMITED[status]) as a, Upstream() as b:
        with Gateway([backend_at(a, "a"), backend_at(b, "b")]) as gateway:
            assert ask(gateway.port, REQUEST).status == int(status)
        assert not b.requests


def test_an_unreachable_backend_is_reported_and_answered_for_by_another() -> None:
    with Upstream() as up, Gateway([backend_at(NOBODY, "gone"), backend_at(up)]) as gateway:
        assert ask(gateway.port, REQUEST).status == 200
        record = gateway.records.next_access()
        ((name, why),) = gateway.records.unreachable
    assert (record.backend, record.retries) == ("b1", 1)
    assert name == "gone"
    assert "Connection refused" in why


def test_a_backend_that_is_down_is_not_asked() -> None:
    with Upstream() as down, Upstream() as up:
        backends = [backend_at(down, "down", state=BackendState.DOWN), backend_at(up, "up")]
        with Gateway(backends) as gateway:
            assert ask(gateway.port, REQUEST).status == 200
            assert gateway.records.next_access().retries == 0
        assert not down.requests


def test_the_decision_is_made_anew_for_the_other_backend() -> None:
    with Upstream() as up:
        backends = [backend_at(NOBODY, "gone"), backend_at(up, "plain", findings={})]
        with Gateway(backends, policy=prod_policy()) as gateway:
            ask(gateway.port, REQUEST)
            gateway.records.next_access()
            (stage,) = gateway.records.stages
        assert up.requests[0].body == b'{"model":"m1"}'
    assert (stage.backend, stage.action, stage.reason) == ("plain", "bypass", "no_executor")


def test_a_timeout_of_a_delivered_request_is_not_tried_elsewhere() -> None:
    with Upstream(Conversation.wait_for_hang_up) as slow, Upstream() as other:
        backends = [backend_at(slow, "slow"), backend_at(other, "other")]
        with Gateway(backends, timeouts=Timeouts(first_byte_s=0.2)) as gateway:
            assert ask(gateway.port, REQUEST).status == 504
        assert not other.requests


@pytest.mark.parametrize("end", [Conversation.close, Conversation.reset])
def test_a_fresh_connection_that_closes_without_a_byte_is_not_tried_again(end: Script) -> None:
    """The request may have run."""
    with Upstream(end) as up, Upstream() as other:
        with Gateway([backend_at(up), backend_at(other, "other")]) as gateway:
            assert ask(gateway.port, REQUEST).status == 502
            assert gateway.records.next_access().ending == "backend_broke_off"
        assert len(up.requests) == 1
        assert not other.requests


def closing_reused_ones(end: Script) -> Script:
    """A script that answers the first request of a connection, and ends it at the second."""
    seen: set[int] = set()

    def script(conversation: Conversation) -> None:
        if conversation.request.connection in seen:
            end(conversation)
        else:
            seen.add(conversation.request.connection)
            conversation.answer()

    return script


@pytest.mark.parametrize("end", [Conversation.close, Conversation.reset])
def test_a_reused_connection_that_closes_without_a_byte_is_tried_once_more_on_a_fresh_one(
    end: Script,
) -> None:
    with serving(closing_reused_ones(end)) as (up, gateway):
        answers = [ask(gateway.port, REQUEST).status for _ in range(3)]
        retries = [gateway.records.next_access().retries for _ in range(3)]
        assert [request.connection for request in up.requests] == [0, 0, 1, 2][: len(up.requests)]
    assert answers == [200, 200, 200]
    assert retries == [0, 1, 0]


def test_a_reused_connection_that_closes_after_a_byte_is_not_tried_again() -> None:
    def half_a_head(conversation: Conversation) -> None:
        conversation.send(b"HTTP/1.1 200 OK\r\nX-A: 1\r\n")
        conversation.close()

    with serving(closing_reused_ones(half_a_head)) as (up, gateway):
        assert [ask(gateway.port, REQUEST).status for _ in range(2)] == [200, 502]
        assert len(up.requests) == 2


def test_a_reused_connection_that_hangs_up_is_answered_for_by_another_backend() -> None:
    with (
        Upstream(closing_reused_ones(Conversation.close)) as a,
        Upstream() as b,
        Gateway([backend_at(a, "a"), backend_at(b, "b")]) as gateway,
    ):
        for _ in range(2):
            assert ask(gateway.port, REQUEST).status == 200
        assert [gateway.records.next_access().backend for _ in range(2)] == ["a", "b"]


def test_connections_that_closed_while_idle_harm_nobody() -> None:
    with serving(Conversation.answer) as (up, gateway):
        for _ in range(10):
            assert ask(gateway.port, REQUEST).status == 200
            up.hang_up_on_all()
        assert len(up.requests) == 10


def test_an_idle_connection_is_used_again() -> None:
    with serving(Conversation.answer) as (up, gateway):
        for _ in range(3):
            ask(gateway.port, REQUEST)
        assert up.connections == 1


def test_without_budget_nothing_is_tried_again() -> None:
    with Upstream(LIMITED["429"]) as busy, Upstream() as free:
        backends = [backend_at(busy, "busy"), backend_at(free, "free")]
        with Gateway(backends, retries=RetryBudget(share=0, burst=0)) as gateway:
            answer = ask(gateway.port, REQUEST)
    assert (answer.status, answer.header("retry-after")) == (429, "30")


def test_retries_are_a_share_of_traffic_after_the_first_burst() -> None:
    budget = RetryBudget(share=0.1, burst=3)
    retried = 0
    for _ in range(1000):
        budget.earn()
        retried += budget.spend()
    assert retried == pytest.approx(103, abs=1)


def test_a_quiet_time_does_not_save_up_more_than_the_burst() -> None:
    budget = RetryBudget(share=0.1, burst=3)
    for _ in range(1000):
        budget.earn()
    assert [budget.spend() for _ in range(4)] == [True, True, True, False]


def test_the_backend_with_the_fewest_calls_is_asked_first() -> None:
    with (
        Upstream(Conversation.wait_for_hang_up) as slow,
        Upstream() as other,
        Gateway([backend_at(slow, "slow"), backend_at(other, "other")]) as gateway,
        RawClient(gateway.port) as waiting,
    ):
        waiting.send(REQUEST)
        slow.next_request()
        assert ask(gateway.port, REQUEST).status == 200
        assert gateway.records.next_access().backend == "other"
