"""Whatever becomes of a request, it leaves one access line, one span, one count; shadow and prod a stage."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from gateway.fleet.model import FleetSnapshot
from gateway.policy.model import Policy
from gateway.proxy.handler import Limits
from gateway.proxy.upstream import Timeouts
from gateway.telemetry.logs import ACCESS_LOGGER, STAGE_LOGGER, RecordLog
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import StageRecord
from gateway.telemetry.sink import Telemetry
from gateway.telemetry.spans import STAGE_SPAN, OtelSpans
from tests.fakes.processes import until
from tests.fakes.raw_http import RawClient, get, post
from tests.fakes.upstream import Conversation, Script, Upstream, always_ok
from tests.gateway.proxy.harness import Gateway, Holder, backend_at, policy_with, prod_policy

BODY_LIMIT = 2000
STREAM = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
CHAT = b'{"model":"m1","messages":[]}'


class Kept(logging.Handler):
    """Lines as they would be on stdout."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(record.getMessage()))


@dataclass
class Stored:
    """Stands for the store."""

    records: list[StageRecord] = field(default_factory=list)

    def put(self, record: StageRecord) -> None:
        self.records.append(record)


class Recorded:
    """The gateway's own telemetry, and all that it was given."""

    def __init__(self, policy: Policy) -> None:
        self.access, self.stage, self.stored = Kept(), Kept(), Stored()
        self._exporter = InMemorySpanExporter()
        self.fleet = FleetSnapshot()
        self.metrics = Metrics(fleet=lambda: self.fleet, policy=_Policies(policy), kills=lambda: 0)
        self.telemetry = Telemetry(
            metrics=self.metrics,
            spans=OtelSpans(SimpleSpanProcessor(self._exporter)),
            stage_log=RecordLog(STAGE_LOGGER),
            access_log=RecordLog(ACCESS_LOGGER),
            store_writer=self.stored,
        )

    def spans(self, name_of_stage: bool) -> list[str]:
        return [
            s.name for s in self._exporter.get_finished_spans() if (s.name == STAGE_SPAN) is name_of_stage
        ]

    def samples(self, name: str = "") -> list[float]:
        """Values of the series whose names begin so; the page parses."""
        families = text_string_to_metric_families(self.metrics.exposition().decode())
        return [s.value for family in families for s in family.samples if s.name.startswith(name)]

    def counted(self) -> float:
        return sum(self.samples("ace_requests_total"))


class _Policies(Holder):
    error = None


@pytest.fixture
def attached() -> Iterator[Callable[[Recorded], None]]:
    with ExitStack() as detaching:

        def attach(recorded: Recorded) -> None:
            for name, handler in ((ACCESS_LOGGER, recorded.access), (STAGE_LOGGER, recorded.stage)):
                logger = logging.getLogger(name)
                logger.addHandler(handler)
                detaching.callback(logger.removeHandler, handler)
                detaching.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.INFO)

        yield attach


def dies_in_its_stream(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(STREAM)
    conversation.reset()


def dies_before_a_word(conversation: Conversation) -> None:
    conversation.reset()


def fails(conversation: Conversation) -> None:
    conversation.answer(b'{"error":{}}', status="500 Internal Server Error")


def refuses(conversation: Conversation) -> None:
    conversation.answer(b'{"error":{}}', status="422 Unprocessable Entity")


def hangs(conversation: Conversation) -> None:
    conversation.wait_for_hang_up()


def hangs_in_its_stream(conversation: Conversation) -> None:
    conversation.start_stream()
    conversation.chunk(STREAM)
    conversation.wait_for_hang_up()


def answers_with_a_stream(conversation: Conversation) -> None:
    conversation.stream(STREAM, b"data: [DONE]\n\n")


def reads_the_answer(client: RawClient, upstream: Upstream) -> None:
    client.read_answer()


def leaves_before_the_head(client: RawClient, upstream: Upstream) -> None:
    upstream.next_request()


def leaves_in_the_stream(client: RawClient, upstream: Upstream) -> None:
    client.read_until(b"data:")


def leaves_at_once(client: RawClient, upstream: Upstream) -> None:
    """While it is still sending."""


@dataclass(frozen=True)
class Case:
    """A request, what becomes of it, and what its records have to say."""

    request: bytes
    status: int
    ending: str
    script: Script = always_ok
    client: Callable[[RawClient, Upstream], None] = reads_the_answer
    stage: bool = True


KEY = "Authorization: Bearer sk-WRONG"
CASES = {
    "answered": Case(post(CHAT), 200, "completed"),
    "streamed": Case(post(CHAT), 200, "completed", answers_with_a_stream),
    "refused by its backend": Case(post(CHAT), 422, "completed", refuses),
    "failed by its backend": Case(post(CHAT), 500, "completed", fails),
    "cut off in a stream": Case(post(CHAT), 200, "backend_broke_off", dies_in_its_stream),
    "cut off before a word": Case(post(CHAT), 502, "backend_broke_off", dies_before_a_word),
    "never answered": Case(post(CHAT), 504, "backend_timeout", hangs),
    "a stream that falls silent": Case(post(CHAT), 200, "backend_timeout", hangs_in_its_stream),
    "left before the head": Case(post(CHAT), 499, "client_left", hangs, leaves_before_the_head),
    "left in a stream": Case(post(CHAT), 200, "client_left", hangs_in_its_stream, leaves_in_the_stream),
    "left in its own body": Case(post(CHAT)[:-5], 499, "client_left", client=leaves_at_once, stage=False),
    "malformed": Case(post(b'{"model":'), 400, "invalid_request", stage=False),
    "without a model": Case(post(b"{}"), 400, "invalid_request", stage=False),
    "of an unknown model": Case(post(b'{"model":"m2"}'), 404, "model_not_found", stage=False),
    "of an unknown route": Case(get("/v1/../admin"), 404, "unknown_route", stage=False),
    "of a wrong method": Case(get("/v1/chat/completions"), 405, "method_not_allowed", stage=False),
    "with a wrong key": Case(post(CHAT, KEY), 401, "invalid_api_key", stage=False),
    "too large": Case(post(b"x" * 2 * BODY_LIMIT), 413, "request_too_large", stage=False),
    "compressed": Case(
        post(CHAT, "Content-Encoding: gzip"), 415, "unsupported_content_encoding", stage=False
    ),
    "a list of models": Case(get("/v1/models"), 200, "completed", stage=False),
}
POLICIES = {"off": policy_with("off"), "shadow": policy_with("shadow"), "prod": prod_policy()}


@pytest.mark.parametrize(
    "mode", ["prod", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("off", "shadow"))]
)
@pytest.mark.parametrize("name", CASES)
def test_a_request_leaves_each_record_once(
    name: str, mode: str, attached: Callable[[Recorded], None]
) -> None:
    case, recorded = CASES[name], Recorded(POLICIES[mode])
    attached(recorded)
    with Upstream(case.script) as upstream:
        gateway = Gateway(
            [backend_at(upstream)],
            policy=POLICIES[mode],
            timeouts=Timeouts(first_byte_s=0.3, idle_s=0.3)
            if case.ending == "backend_timeout"
            else Timeouts(),
            limits=Limits(body_bytes=BODY_LIMIT),
            telemetry=recorded.telemetry,
        )
        recorded.fleet = gateway.fleet
        with gateway:
            with RawClient(gateway.port) as client:
                client.send(case.request)
                case.client(client, upstream)
            until(lambda: recorded.access.lines, "the line of the request")
    (line,) = recorded.access.lines
    assert (line["status"], line["ending"]) == (case.status, case.ending)
    assert len(recorded.spans(name_of_stage=False)) == 1
    assert recorded.counted() == 1
    staged = 1 if case.stage else 0
    assert len(gateway.records.offered) == (staged if mode == "shadow" else 0)
    in_prod = staged if mode == "prod" else 0
    assert len(recorded.stage.lines) == in_prod
    assert len(recorded.stored.records) == in_prod
    assert len(recorded.spans(name_of_stage=True)) == in_prod


def test_a_backend_that_nobody_serves_is_recorded_too(attached: Callable[[Recorded], None]) -> None:
    recorded = Recorded(POLICIES["prod"])
    attached(recorded)
    with Upstream(always_ok) as gone:
        backend = backend_at(gone)
    gateway = Gateway([backend], policy=POLICIES["prod"], telemetry=recorded.telemetry)
    with gateway:
        with RawClient(gateway.port) as client:
            client.send(post(CHAT))
            assert client.read_answer().status == 502
        until(lambda: recorded.access.lines, "the line of the request")
    assert [line["ending"] for line in recorded.access.lines] == ["backend_unreachable"]
    assert [line["reason"] for line in recorded.stage.lines] == ["backend_unreachable"]


def test_a_stream_that_a_stopping_gateway_cuts_off_is_recorded_too(
    attached: Callable[[Recorded], None],
) -> None:
    recorded = Recorded(POLICIES["prod"])
    attached(recorded)
    with Upstream(hangs_in_its_stream) as upstream:
        gateway = Gateway(
            [backend_at(upstream)], policy=POLICIES["prod"], telemetry=recorded.telemetry, patience_s=1
        )
        with RawClient(gateway.port) as client, gateway:
            client.send(post(CHAT))
            client.read_until(b"data:")
    assert [line["ending"] for line in recorded.access.lines] == ["aborted"]
    assert [line["reason"] for line in recorded.stage.lines] == ["aborted"]
    assert len(recorded.spans(name_of_stage=False)) == len(recorded.spans(name_of_stage=True)) == 1


REQUESTS = 10_000
HOSTILE_WORDS = ('"quoted"', "new\nline", "back\\slash", "{label}", "\ud800", "\u202e", "a" * 500)


def hostile(rng: Random) -> Script:
    """An upstream that makes up statuses, finish reasons and errors."""

    def answer(conversation: Conversation) -> None:
        word = f"{rng.choice(HOSTILE_WORDS)}-{rng.random()}"
        status = rng.choice(("200 OK", "200 OK", "418 Teapot", "429 Wait", "500 Oh", "599 Never"))
        choice = {"message": {"content": word}, "finish_reason": word}
        body = {"id": word, "choices": [choice], "error": {"type": word, "code": word}, "metrics": word}
        conversation.answer(json.dumps(body).encode(), status=status)

    return answer


def of_a_stranger(rng: Random, number: int) -> bytes:
    """A request whose every word is new."""
    word = f"{rng.choice(HOSTILE_WORDS)}-{number}"
    headers = (f"X-Tenant: tenant-{number}", f"X-Ace-Workload: work-{number}", f"X-Request-Id: id-{number}")
    kind = number % 5
    if kind == 0:
        return post(json.dumps({"model": word}).encode(), *headers)
    if kind == 1:
        return get(f"/v1/random/{number}?{number}={number}", *headers)
    if kind == 2:
        return post(CHAT, *headers, f"Authorization: Bearer sk-{number}")
    return post(json.dumps({"model": "m1", "messages": [], f"field-{number}": word}).encode(), *headers)


@pytest.mark.slow
def test_what_strangers_make_up_adds_no_series_and_no_state(attached: Callable[[Recorded], None]) -> None:
    recorded, rng = Recorded(POLICIES["prod"]), Random(15)
    with Upstream(hostile(rng)) as upstream:
        gateway = Gateway([backend_at(upstream)], policy=POLICIES["prod"], telemetry=recorded.telemetry)
        recorded.fleet = gateway.fleet
        with gateway, RawClient(gateway.port) as client:

            def send(request: bytes) -> None:
                client.send(request)
                client.read_answer()

            for number in range(200):
                send(of_a_stranger(rng, number))
            before = len(recorded.samples())
            for number in range(200, REQUESTS):
                send(of_a_stranger(rng, number))
            send(post(json.dumps({"model": "m" * 2**20}).encode()))
            until(lambda: recorded.counted() == REQUESTS + 1, "the count of every request")
    assert len(recorded.samples()) - before <= 10
    assert len(recorded.metrics.exposition()) < 100_000
    assert gateway.load.running("b1") == gateway.pool.in_flight("b1") == 0


def test_a_fault_of_our_own_is_recorded_too(
    attached: Callable[[Recorded], None], caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded(POLICIES["off"])
    attached(recorded)
    with Upstream(always_ok) as upstream:
        gateway = Gateway([backend_at(upstream)], telemetry=recorded.telemetry)
        gateway.fleet = None  # type: ignore[assignment]  # the fault
        with gateway:
            with RawClient(gateway.port) as client:
                client.send(post(CHAT))
                assert client.read_answer().status == 500
            until(lambda: recorded.access.lines, "the line of the request")
    assert [line["ending"] for line in recorded.access.lines] == ["internal_error"]
    assert len(recorded.spans(name_of_stage=False)) == 1
