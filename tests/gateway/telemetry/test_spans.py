from collections.abc import Callable, Mapping

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.telemetry.spans import NoSpans, OtelSpans, spans_from_env
from tests.fakes.records import access, stage

TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CLIENT_SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{CLIENT_SPAN}-00"
DESIGN = (
    "mode,action,reason,method,drafter,executor,k,draft_tokens,accepted_tokens,steps,passes,acceptance_rate,"
    "acceptance_length,tokens_per_second,multiplier,control_kind,source,profile"
)


class Traced:
    """Spans of records, and what was exported of them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.spans = OtelSpans(SimpleSpanProcessor(self._exporter), now=lambda: 1007.0)

    def exported(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def traced() -> Traced:
    return Traced()


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return format(span.context.trace_id, "032x"), format(span.context.span_id, "016x")


def unexpected(count: int) -> None:
    raise AssertionError(f"{count} spans were dropped")


def test_a_request_is_a_server_span_with_the_genai_conventions(traced: Traced) -> None:
    traced.spans.access(access())
    (span,) = traced.exported()
    assert (span.name, span.kind) == ("chat m", SpanKind.SERVER)
    assert (span.start_time, span.end_time) == (1_000_000_000_000, 1_002_000_000_000)
    shown = attributes(span)
    assert shown["gen_ai.operation.name"] == "chat"
    assert shown["gen_ai.request.model"] == "m"
    assert shown["http.response.status_code"] == 200
    assert shown["ace.request_id"] == "req-1"
    assert shown["ace.policy.rule"] == "chat"
    assert span.status.status_code is StatusCode.UNSET


def test_any_other_route_is_named_after_its_method_only(traced: Traced) -> None:
    traced.spans.access(access(method="GET", path="/v1/files/42", model=""))
    (span,) = traced.exported()
    assert span.name == "GET"
    assert "gen_ai.operation.name" not in attributes(span)


@pytest.mark.parametrize(
    ("status", "ending", "error"),
    [
        (502, "backend_unreachable", "backend_unreachable"),
        (200, "backend_broke_off", "backend_broke_off"),
        (500, "completed", "500"),
        (0, "aborted", "aborted"),
    ],
)
def test_a_failure_is_an_error_with_its_type(traced: Traced, status: int, ending: str, error: str) -> None:
    traced.spans.access(access(status=status, ending=ending))
    (span,) = traced.exported()
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == error


@pytest.mark.parametrize(
    ("status", "ending", "error"),
    [
        (401, "invalid_api_key", "invalid_api_key"),
        (422, "completed", "422"),
        (499, "client_left", "client_left"),
    ],
)
def test_a_client_that_is_refused_has_an_error_type_and_is_no_error_of_a_server(
    traced: Traced, status: int, ending: str, error: str
) -> None:
    traced.spans.access(access(status=status, ending=ending))
    (span,) = traced.exported()
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span)["error.type"] == error


def test_a_request_that_went_well_has_no_error_type(traced: Traced) -> None:
    traced.spans.access(access())
    assert "error.type" not in attributes(traced.exported()[0])


def test_what_the_client_stated_and_a_streams_first_byte_are_attributes(traced: Traced) -> None:
    traced.spans.access(access(stream=True, temperature=0, first_byte_s=0.25))
    traced.spans.access(access(request_id="whole", stream=False, temperature=None))
    stream, whole = (attributes(span) for span in traced.exported())
    assert stream["gen_ai.request.stream"] is True
    assert stream["gen_ai.request.temperature"] == 0
    assert stream["gen_ai.response.time_to_first_chunk"] == 0.25
    absent = {"gen_ai.request.stream", "gen_ai.request.temperature", "gen_ai.response.time_to_first_chunk"}
    assert not absent & whole.keys()


@pytest.mark.parametrize("make", ["request", "stage"])
def test_every_genai_attribute_is_one_that_the_conventions_name(traced: Traced, make: str) -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    if make == "request":
        traced.spans.access(access(stream=True, temperature=1.0))
    else:
        traced.spans.stage(stage())
    used = {name for name in attributes(traced.exported()[0]) if name.startswith("gen_ai.")}
    assert used
    assert used <= known


def test_a_client_that_leaves_is_no_error_of_ours(traced: Traced) -> None:
    traced.spans.access(access(ending="client_left"))
    assert traced.exported()[0].status.status_code is StatusCode.UNSET


def test_the_stage_carries_every_attribute_of_the_design(traced: Traced) -> None:
    traced.spans.stage(stage(reason="why", multiplier=1.9, control_kind="switchback"))
    (span,) = traced.exported()
    assert span.name == "speculative_decoding"
    shown = attributes(span)
    assert {name for name in shown if name.startswith("ace.spec.")} == {
        f"ace.spec.{name}" for name in DESIGN.split(",")
    }
    assert shown["ace.spec.accepted_tokens"] == 18
    assert shown["ace.spec.acceptance_length"] == 2.8
    assert (shown["ace.policy.rule"], shown["ace.policy.revision"]) == ("chat", "abc")
    assert (shown["gen_ai.usage.input_tokens"], shown["gen_ai.usage.output_tokens"]) == (50, 31)


def test_what_was_not_measured_is_no_attribute(traced: Traced) -> None:
    traced.spans.stage(stage(action="skip", reason="queue_full", acceptance_rate=None))
    assert "ace.spec.acceptance_rate" not in attributes(traced.exported()[0])


def test_the_stage_lasts_from_the_requests_arrival_until_it_was_measured(traced: Traced) -> None:
    traced.spans.stage(stage(at=1000.0))
    (span,) = traced.exported()
    assert (span.start_time, span.end_time) == (1_000_000_000_000, 1_007_000_000_000)


@pytest.mark.parametrize("stage_first", [True, False])
@pytest.mark.parametrize("traceparent", [None, SAMPLED])
def test_both_spans_of_a_request_are_parent_and_child_in_whatever_order_they_come(
    traced: Traced, traceparent: str | None, stage_first: bool
) -> None:
    records: list[Callable[[], None]] = [
        lambda: traced.spans.stage(stage(traceparent=traceparent)),
        lambda: traced.spans.access(access(traceparent=traceparent)),
    ]
    for leave in records if stage_first else reversed(records):
        leave()
    request, child = sorted(traced.exported(), key=lambda span: span.name)
    assert child.parent is not None
    assert (format(child.parent.trace_id, "032x"), format(child.parent.span_id, "016x")) == ids(request)
    assert ids(request)[0] == ids(child)[0]
    assert ids(request)[1] != ids(child)[1]


def test_a_request_without_traceparent_starts_its_own_trace(traced: Traced) -> None:
    traced.spans.access(access(request_id="one"))
    traced.spans.access(access(request_id="two"))
    one, two = traced.exported()
    assert one.parent is None
    assert ids(one)[0] != ids(two)[0]


def test_a_request_joins_the_clients_trace(traced: Traced) -> None:
    traced.spans.access(access(traceparent=SAMPLED))
    (span,) = traced.exported()
    assert ids(span)[0] == TRACE
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == CLIENT_SPAN


def test_a_trace_that_the_client_does_not_sample_is_not_exported(traced: Traced) -> None:
    traced.spans.access(access(traceparent=NOT_SAMPLED))
    traced.spans.stage(stage(traceparent=NOT_SAMPLED))
    assert traced.exported() == []


def test_a_malformed_traceparent_is_as_none(traced: Traced) -> None:
    traced.spans.access(access(traceparent="00-zzz"))
    traced.spans.stage(stage(traceparent="00-zzz"))
    request, child = sorted(traced.exported(), key=lambda span: span.name)
    assert request.parent is None
    assert ids(request)[0] == ids(child)[0]


def test_a_ratio_of_traces_keeps_or_drops_both_spans_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    traced = Traced()
    for i in range(64):
        traced.spans.access(access(request_id=f"r{i}"))
        traced.spans.stage(stage(request_id=f"r{i}"))
    kept = [attributes(span)["ace.request_id"] for span in traced.exported()]
    assert 0 < len(kept) < 128
    assert all(kept.count(request) == 2 for request in kept)


def test_long_and_malformed_text_is_cut_before_it_leaves(traced: Traced) -> None:
    traced.spans.access(access(model="\ud800" + "m" * 1_000_000))
    (span,) = traced.exported()
    assert len(span.name) <= 512
    assert len(str(attributes(span)["gen_ai.request.model"]).encode()) <= 512


def test_the_service_is_named_and_the_operator_may_name_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def service() -> object:
        traced = Traced()
        traced.spans.access(access())
        return traced.exported()[0].resource.attributes["service.name"]

    assert service() == "ace-gateway"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    assert service() == "edge"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_a_configured_exporter_there_are_no_spans(env: dict[str, str]) -> None:
    assert isinstance(spans_from_env(env, dropped=unexpected), NoSpans)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_an_otlp_endpoint_turns_spans_on(name: str) -> None:
    spans = spans_from_env({name: "http://127.0.0.1:4318"}, dropped=unexpected)
    assert isinstance(spans, OtelSpans)
    spans.close()
