"""The other end of OTLP over HTTP: a real server that decodes what it is sent, or fails as told."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_DECODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}

Value = str | int | float | bool


@dataclass(frozen=True)
class GotSpan:
    """One span as it was on the wire; ids in hex, times in nanoseconds, an absent parent empty."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    status: int
    started: int
    ended: int
    attributes: Mapping[str, Value]
    resource: Mapping[str, Value]


@dataclass(frozen=True)
class Export:
    """One request that arrived: its path, headers (lower case) and spans."""

    path: str
    headers: Mapping[str, str]
    spans: tuple[GotSpan, ...]


@dataclass
class OtlpReceiver:
    """Answers each request with the next of `answers` (status, headers), and 200 when there is none left.

    Attributes:
        always: A status for all requests, instead of `answers`.
        hanging: While set to an event, no request is answered until that is set.
        exports: What arrived, whatever was answered.
        taken: Spans of the requests that were answered with 200.
    """

    url: str
    answers: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)
    always: int | None = None
    hanging: threading.Event | None = None
    exports: list[Export] = field(default_factory=list)
    taken: list[GotSpan] = field(default_factory=list)

    def of(self, request_id: str) -> dict[str, GotSpan]:
        """The spans of one request that were taken, by kind of span: `request` and `speculative_decoding`."""
        mine = [span for span in self.taken if span.attributes.get("ace.request_id") == request_id]
        named = {"speculative_decoding" if s.name == "speculative_decoding" else "request": s for s in mine}
        assert len(named) == len(mine), f"a span of {request_id} was sent twice: {mine}"
        return named

    def receive(self, export: Export) -> tuple[int, Mapping[str, str]]:
        self.exports.append(export)
        if self.hanging is not None:
            self.hanging.wait()
        if self.always is not None:
            return self.always, {}
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        if status == 200:
            self.taken.extend(export.spans)
        return status, headers


@contextmanager
def otlp_receiver(port: int = 0) -> Iterator[OtlpReceiver]:
    """A receiver on loopback, on a free port unless one is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            extra: Mapping[str, str] = {}
            try:
                spans = decoded(body, headers.get("content-encoding", "identity"))
            except Exception:  # noqa: BLE001 whatever is wrong with it, it is not taken
                status = 400
            else:
                status, extra = receiver.receive(Export(self.path, headers, spans))
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 http.server's signature
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        if receiver.hanging is not None:
            receiver.hanging.set()
        server.shutdown()
        thread.join()
        server.server_close()


def decoded(body: bytes, encoding: str = "identity") -> tuple[GotSpan, ...]:
    """The spans of an ExportTraceServiceRequest.

    Raises:
        Exception: It is none, or an encoding that OTLP does not know.
    """
    request = ExportTraceServiceRequest.FromString(_DECODERS[encoding](body))
    return tuple(
        _span(span, _values(group.resource.attributes))
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    )


def _span(span: Span, resource: Mapping[str, Value]) -> GotSpan:
    return GotSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        status=span.status.code,
        started=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        resource=resource,
    )


def _values(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    return {item.key: _value(item.value) for item in attributes}


def _value(value: AnyValue) -> Value:
    kind = value.WhichOneof("value")
    assert kind in ("string_value", "bool_value", "int_value", "double_value"), f"unexpected {kind}"
    found: Value = getattr(value, kind)
    return found
