import threading

import pytest

from gateway.telemetry import endpoint
from gateway.telemetry.endpoint import EndpointLook, exports_spans, look_at_endpoint
from tests.fakes.otlp_receiver import otlp_receiver


async def test_without_an_endpoint_there_is_nothing_to_look_at() -> None:
    assert await look_at_endpoint({}) == EndpointLook(url=None)
    off = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}
    assert await look_at_endpoint(off) == EndpointLook(url=None)
    assert not exports_spans(off)


async def test_an_endpoint_that_takes_spans_is_good_and_is_sent_none() -> None:
    with otlp_receiver() as receiver:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{receiver.url}/",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20key",
        }
        assert await look_at_endpoint(env) == EndpointLook(url=f"{receiver.url}/v1/traces")
    (export,) = receiver.exports
    assert export.spans == ()
    assert export.headers["authorization"] == "Bearer key"


async def test_a_traces_endpoint_is_used_as_it_is_and_shown_without_secrets() -> None:
    with otlp_receiver() as receiver:
        secret = receiver.url.replace("http://", "http://user:pass@") + "/mine?key=secret"
        look = await look_at_endpoint({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": secret})
    assert look == EndpointLook(url=f"{receiver.url}/mine")
    assert receiver.exports[0].path == "/mine?key=secret"


async def test_an_endpoint_that_refuses_is_shown_with_its_status() -> None:
    with otlp_receiver() as receiver:
        receiver.always = 401
        look = await look_at_endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert look.error == "it answers HTTP 401"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "no url", "http://[::bad", "ftp://x"])
async def test_an_endpoint_that_cannot_be_reached_is_an_error_and_no_exception(url: str) -> None:
    assert (await look_at_endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": url})).error


async def test_an_endpoint_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_TIME_LIMIT_S", 0.1)
    with otlp_receiver() as receiver:
        receiver.hanging = threading.Event()
        look = await look_at_endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert look.error
    assert "Timeout" in look.error
