"""OpenTelemetry spans, made from records after the request has ended.

The request's span and its child `speculative_decoding` come from two records that may be minutes apart
(shadow is scored later). Both find each other because their ids are computed from the request id and the
client's traceparent, not drawn: requests that share both also share a span id.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway import __version__
from gateway.telemetry.endpoint import exports_spans
from gateway.telemetry.record import AccessRecord, StageRecord, clipped

STAGE_SPAN = "speculative_decoding"

_log = logging.getLogger(__name__)

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_PATIENCE_S = 2.0


class Spans(Protocol):
    """Turns records into spans."""

    def access(self, record: AccessRecord) -> None:
        """Make the request's span."""

    def stage(self, record: StageRecord) -> None:
        """Make the stage's span."""

    def close(self) -> None:
        """Export what waits; may take two seconds."""


def spans_from_env(env: Mapping[str, str], dropped: Callable[[int], None]) -> Spans:
    """Spans to the OTLP endpoint that OpenTelemetry's own variables name; none of them set costs nothing.

    Args:
        env: The environment.
        dropped: Told how many spans the endpoint did not take, from any thread.
    """
    if not exports_spans(env):
        return NoSpans()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OtelSpans(CountedSpans(OTLPSpanExporter(), dropped, waiting=_queue_size(env)))


def _queue_size(env: Mapping[str, str]) -> int:
    """OpenTelemetry's own variable and default; what is no number is as unset, as its specification says."""
    text = env.get("OTEL_BSP_MAX_QUEUE_SIZE", "")
    return int(text) if text.isdecimal() and int(text) else 2048


class CountedSpans(SpanProcessor):
    """Exports spans in batches, from a thread; whatever is not delivered is counted, exactly once.

    Args:
        exporter: Delivers a batch, or says that it could not.
        dropped: Told how many spans were lost, from any thread.
        waiting: Spans that may wait for delivery; more are lost.
    """

    def __init__(self, exporter: SpanExporter, dropped: Callable[[int], None], waiting: int = 2048) -> None:
        self._dropped, self._limit = dropped, waiting
        self._lock = threading.Lock()
        self._unsettled = 0
        self._closed = False
        self._losing = False
        self._batches = BatchSpanProcessor(
            _Reporting(exporter, self._delivered, self._refused), max_queue_size=waiting
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span; never waits."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            room = self._unsettled < self._limit and not self._closed
            self._unsettled += room
        if room:
            self._batches.on_end(span)
        else:
            self._dropped(1)

    def shutdown(self) -> None:
        """Deliver what waits; a collector that is away is given up after two seconds."""
        closing = threading.Thread(target=self._batches.shutdown, name="ace-spans", daemon=True)
        closing.start()
        closing.join(_PATIENCE_S)
        with self._lock:
            self._closed, undelivered, self._unsettled = True, self._unsettled, 0
        if undelivered:
            self._dropped(undelivered)

    def _delivered(self, spans: int) -> None:
        self._settle(spans)
        if self._losing:
            self._losing = False
            _log.info("Spans are delivered again.")

    def _refused(self, spans: int) -> None:
        if self._settle(spans):
            self._dropped(spans)
        if not self._losing:
            self._losing = True
            _log.error(
                "Spans are being lost: the OTLP endpoint does not take them. Said once; "
                'ace_records_dropped_total{sink="spans"} counts them, and `ace doctor` says why.'
            )

    def _settle(self, spans: int) -> bool:
        """Whether these spans still had to be accounted for."""
        with self._lock:
            self._unsettled -= 0 if self._closed else spans
            return not self._closed


class _Reporting(SpanExporter):
    """Exports through `exporter` and says what became of each batch."""

    def __init__(
        self, exporter: SpanExporter, delivered: Callable[[int], None], refused: Callable[[int], None]
    ) -> None:
        self._exporter, self._delivered, self._refused = exporter, delivered, refused

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            (self._delivered if result is SpanExportResult.SUCCESS else self._refused)(len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class NoSpans:
    """Makes no spans."""

    def access(self, record: AccessRecord) -> None:
        """Do nothing."""

    def stage(self, record: StageRecord) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class OtelSpans:
    """Gives spans to `processor`, of requests that traceparent and OTEL_TRACES_SAMPLER say to sample."""

    def __init__(self, processor: SpanProcessor, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._ids = _ChosenIds()
        service = Resource.create({"service.name": "ace-gateway", "service.version": __version__})
        self._provider = TracerProvider(
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over our own name.
            resource=service.merge(OTELResourceDetector().detect()),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ace-gateway", __version__)

    def access(self, record: AccessRecord) -> None:
        """Make the request's span, a child of the client's own."""
        trace = _Trace(record.request_id, record.traceparent)
        self._ids.choose(trace.trace_id, trace.request_span_id)
        span = self._tracer.start_span(
            _request_name(record),
            context=trace.client,
            kind=SpanKind.SERVER,
            attributes=dict(_present(_request_attributes(record))),
            start_time=_nanoseconds(record.started_at),
        )
        if _failed(record):
            span.set_status(Status(StatusCode.ERROR, _error_type(record)))
        span.end(_nanoseconds(record.started_at + record.duration_s))

    def stage(self, record: StageRecord) -> None:
        """Make the stage's span: from the request's arrival until it was measured."""
        trace = _Trace(record.request_id, record.traceparent)
        self._ids.choose(trace.trace_id, trace.stage_span_id)
        span = self._tracer.start_span(
            STAGE_SPAN,
            context=self._as_parent(trace),
            attributes=dict(_present(_stage_attributes(record))),
            start_time=_nanoseconds(record.at),
        )
        span.end(_nanoseconds(max(record.at, self._now())))

    def close(self) -> None:
        """Have the processor deliver what waits."""
        self._provider.shutdown()

    def _as_parent(self, trace: _Trace) -> Context:
        """The request's span, sampled if and only if `access` samples it."""
        decision = self._provider.sampler.should_sample(trace.client, trace.trace_id, "").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        parent = SpanContext(
            trace.trace_id,
            trace.request_span_id,
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT),
        )
        return set_span_in_context(NonRecordingSpan(parent))


class _Trace:
    """The ids of one request's spans."""

    def __init__(self, request_id: str, traceparent: str | None) -> None:
        carrier = {"traceparent": traceparent} if traceparent else {}
        self.client = TraceContextTextMapPropagator().extract(carrier, Context())
        client_span = get_current_span(self.client).get_span_context()
        digest = hashlib.sha256(f"{request_id}\0{traceparent}".encode(errors="replace")).digest()
        self.trace_id = client_span.trace_id or int.from_bytes(digest[:16])
        self.request_span_id = int.from_bytes(digest[16:24])
        self.stage_span_id = int.from_bytes(digest[24:])


class _ChosenIds(IdGenerator):
    """Gives the next span of this thread the ids that were chosen for it."""

    def __init__(self) -> None:
        self._next = threading.local()

    def choose(self, trace_id: int, span_id: int) -> None:
        self._next.trace_id, self._next.span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        return int(self._next.trace_id)

    def generate_span_id(self) -> int:
        return int(self._next.span_id)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _request_name(record: AccessRecord) -> str:
    operation = _OPERATIONS.get(record.path)
    return clipped(f"{operation} {record.model}") if operation else clipped(record.method)


def _failed(record: AccessRecord) -> bool:
    """Whether a server's span is an error: a refused client's is not, says the HTTP convention."""
    broken = record.status < 400 and record.ending not in ("completed", "client_left")
    return broken or record.status >= 500


def _error_type(record: AccessRecord) -> str | None:
    """How the request ended if not well; a backend's own failure, relayed whole, is its status."""
    if record.ending != "completed":
        return record.ending
    return str(record.status) if record.status >= 400 else None


def _request_attributes(record: AccessRecord) -> dict[str, object]:
    operation = _OPERATIONS.get(record.path)
    return {
        "gen_ai.operation.name": operation,
        # The convention means the flavour of the API, not who made the model.
        "gen_ai.provider.name": "openai" if operation else None,
        "gen_ai.request.model": record.model or None,
        "gen_ai.request.temperature": record.temperature,
        "gen_ai.request.stream": record.stream or None,
        "gen_ai.response.time_to_first_chunk": record.first_byte_s if record.stream else None,
        "http.request.method": record.method,
        "http.response.status_code": record.status or None,
        "url.path": record.path,
        "error.type": _error_type(record),
        "ace.request_id": record.request_id,
        "ace.tenant": record.tenant,
        "ace.workload": record.workload,
        "ace.mode": record.mode,
        "ace.action": record.action,
        "ace.backend": record.backend,
        "ace.ending": record.ending,
        "ace.retries": record.retries,
        "ace.first_byte_s": record.first_byte_s,
        "ace.overhead_s": record.overhead_s,
        "ace.policy.rule": record.rule,
    }


def _stage_attributes(record: StageRecord) -> dict[str, object]:
    return {
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "ace.request_id": record.request_id,
        "ace.backend": record.backend,
        "ace.spec.mode": record.mode,
        "ace.spec.action": record.action,
        "ace.spec.reason": record.reason,
        # A method is a kind of drafter; the only drafters so far are kinds by themselves.
        "ace.spec.method": record.drafter,
        "ace.spec.drafter": record.drafter,
        "ace.spec.executor": record.executor,
        "ace.spec.k": record.k,
        "ace.spec.draft_tokens": record.draft_tokens,
        "ace.spec.accepted_tokens": record.accepted_tokens,
        "ace.spec.steps": record.steps,
        "ace.spec.passes": record.passes,
        "ace.spec.acceptance_rate": record.acceptance_rate,
        "ace.spec.acceptance_length": record.mean_acceptance_length,
        "ace.spec.tokens_per_second": record.tokens_per_second,
        "ace.spec.multiplier": record.multiplier,
        "ace.spec.control_kind": record.control_kind,
        "ace.spec.source": record.source,
        "ace.spec.profile": record.profile,
        "ace.spec.looping": record.looping,
        "ace.policy.rule": record.rule,
        "ace.policy.revision": record.policy_revision,
    }


def _present(attributes: dict[str, object]) -> Iterator[tuple[str, AttributeValue]]:
    for name, value in attributes.items():
        if isinstance(value, str):
            yield name, clipped(str(value))
        elif isinstance(value, (int, float)):
            yield name, value
