import gzip
import zlib

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.otlp_receiver import OtlpReceiver, otlp_receiver


def a_request() -> bytes:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "me"
    span = group.scope_spans.add().spans.add()
    span.name, span.trace_id, span.span_id = "chat m", b"\x01" * 16, b"\x02" * 8
    span.attributes.add(key="ace.request_id").value.string_value = "r"
    span.attributes.add(key="n").value.int_value = 3
    span.attributes.add(key="x").value.double_value = 0.5
    span.attributes.add(key="b").value.bool_value = True
    serialized: bytes = request.SerializeToString()
    return serialized


def send(receiver: OtlpReceiver, body: bytes, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{receiver.url}/v1/traces", content=body, headers=named).status_code


@pytest.mark.parametrize(
    ("encoding", "encode"), [("identity", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_span_is_decoded_with_its_types(encoding: str, encode: type[bytes]) -> None:
    with otlp_receiver() as receiver:
        assert send(receiver, encode(a_request()), content_encoding=encoding, authorization="Bearer x") == 200
    (span,) = receiver.taken
    assert (span.name, span.trace_id, span.span_id, span.parent_id) == ("chat m", "01" * 16, "02" * 8, "")
    assert span.attributes == {"ace.request_id": "r", "n": 3, "x": 0.5, "b": True}
    assert span.resource == {"service.name": "me"}
    assert receiver.of("r") == {"request": span}
    assert receiver.exports[0].path == "/v1/traces"
    assert receiver.exports[0].headers["authorization"] == "Bearer x"


@pytest.mark.parametrize(
    "body", [b"no protobuf", gzip.compress(b"no protobuf", mtime=0)], ids=["plain", "packed"]
)
def test_what_cannot_be_decoded_is_refused_and_not_kept(body: bytes) -> None:
    with otlp_receiver() as receiver:
        assert send(receiver, body) == 400
    assert receiver.exports == []


def test_it_fails_as_told_and_keeps_only_what_it_took() -> None:
    with otlp_receiver() as receiver:
        receiver.answers = [(503, {"retry-after": "1"})]
        assert send(receiver, a_request()) == 503
        assert receiver.taken == []
        assert send(receiver, a_request()) == 200
        receiver.always = 400
        assert send(receiver, a_request()) == 400
    assert len(receiver.taken) == 1
    assert len(receiver.exports) == 3


def test_a_span_sent_twice_is_noticed() -> None:
    with otlp_receiver() as receiver:
        send(receiver, a_request())
        send(receiver, a_request())
    with pytest.raises(AssertionError, match="twice"):
        receiver.of("r")
