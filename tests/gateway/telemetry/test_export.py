"""Spans over the wire: what a receiver that decodes OTLP gets, and what becomes of what it does not take."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gateway.telemetry.spans import OtelSpans, spans_from_env
from tests.fakes.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.fakes.processes import until
from tests.fakes.records import access, stage

STOP_S = 2.0
QUEUE = 32


@dataclass
class Exporting:
    """Spans on their way to an endpoint, and how many were counted as lost."""

    spans: OtelSpans
    lost: list[int] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        return sum(self.lost)

    def requests(self, count: int, start: int = 0) -> None:
        for number in range(start, start + count):
            self.spans.access(access(request_id=f"r{number}"))


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as listening:
        yield listening


def exporting(monkeypatch: pytest.MonkeyPatch, url: str, **variables: str) -> Exporting:
    """Spans as `ace serve` makes them of this environment; small batches that leave at once."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_BSP_SCHEDULE_DELAY": "10",
        "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        **variables,
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    lost: list[int] = []
    spans = spans_from_env(env, lost.append)
    assert isinstance(spans, OtelSpans)
    return Exporting(spans, lost)


def test_what_is_taken_is_never_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver
) -> None:
    sent = exporting(monkeypatch, receiver.url)
    sent.requests(QUEUE)
    sent.spans.stage(stage(request_id="r0"))
    sent.spans.close()
    assert len(receiver.taken) + sent.dropped == QUEUE + 1
    assert len(receiver.taken) >= QUEUE


def test_headers_compression_and_path_are_the_operators(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver
) -> None:
    sent = exporting(
        monkeypatch,
        f"{receiver.url}/base",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20collector-key,x-team=infra",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
    )
    sent.requests(1)
    sent.spans.close()
    (export,) = receiver.exports
    assert export.path == "/base/v1/traces"
    assert export.headers["authorization"] == "Bearer collector-key"
    assert export.headers["x-team"] == "infra"
    assert export.headers["content-encoding"] == "gzip"
    assert export.spans[0].resource["deployment.environment.name"] == "test"
    assert export.spans[0].resource["service.name"] == "ace-gateway"


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_is_busy_is_asked_again_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver, status: int
) -> None:
    receiver.answers = [(status, {"retry-after": "0"})]
    sent = exporting(monkeypatch, receiver.url)
    sent.requests(1)
    until(lambda: receiver.taken, "the span, at the second attempt")
    sent.spans.close()
    assert len(receiver.exports) == 2
    assert len(receiver.taken) == 1
    assert sent.dropped == 0


def test_what_a_receiver_refuses_is_counted_and_said_once_until_it_takes_again(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    receiver.always = 400
    sent = exporting(monkeypatch, receiver.url)

    def refuse_one() -> None:
        before = sent.dropped
        sent.requests(1, before)
        until(lambda: sent.dropped > before, "the count of the refused span")

    for _ in range(3):
        refuse_one()
    receiver.always = None
    sent.requests(1, 3)
    until(lambda: receiver.taken, "a span that is taken")
    sent.spans.close()
    assert sent.dropped == 3
    said = [entry.getMessage() for entry in caplog.records if entry.name == "gateway.telemetry.spans"]
    assert [line.partition(":")[0] for line in said] == ["Spans are being lost", "Spans are delivered again."]


def test_a_receiver_that_hangs_costs_no_request_time_and_only_what_the_queue_cannot_hold(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver
) -> None:
    receiver.hanging = threading.Event()
    sent = exporting(monkeypatch, receiver.url)
    begun = time.monotonic()
    sent.requests(10 * QUEUE)
    assert time.monotonic() - begun < STOP_S
    assert sent.dropped == 9 * QUEUE
    receiver.hanging.set()
    until(lambda: len(receiver.taken) == QUEUE, "what the queue held")
    sent.spans.close()
    assert sent.dropped == 9 * QUEUE


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unheard.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [True, False])
def test_a_stop_is_bounded_and_what_was_not_delivered_is_counted(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver, nobody: str, hangs: bool
) -> None:
    receiver.hanging = threading.Event()
    url = receiver.url if hangs else nobody
    sent = exporting(monkeypatch, url)
    sent.requests(5)
    begun = time.monotonic()
    sent.spans.close()
    assert time.monotonic() - begun < STOP_S + 0.5
    assert sent.dropped == 5
    sent.requests(1)
    assert sent.dropped == 6


@pytest.mark.parametrize("size", ["", "0", "many"])
def test_a_queue_size_that_is_none_is_opentelemetrys_default(
    monkeypatch: pytest.MonkeyPatch, receiver: OtlpReceiver, size: str
) -> None:
    sent = exporting(monkeypatch, receiver.url, OTEL_BSP_MAX_QUEUE_SIZE=size)
    sent.requests(QUEUE + 1)
    sent.spans.close()
    assert sent.dropped == 0
    assert len(receiver.taken) == QUEUE + 1
