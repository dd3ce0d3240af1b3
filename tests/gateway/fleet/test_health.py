"""One look at a backend, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.fleet.health import Health, HttpHealthCheck, checked_session
from gateway.fleet.model import Process
from gateway.fleet.processes import Sighting
from tests.fakes.model_list import model_list_server
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.resolver import FakeResolver
from tests.fakes.served import served


@pytest.fixture
async def check() -> AsyncIterator[HttpHealthCheck]:
    async with checked_session() as session:
        yield HttpHealthCheck(session)


async def test_a_server_that_lists_models_is_alive(check: HttpHealthCheck) -> None:
    async with model_list_server(models=["m", "n"]) as server:
        assert await check(server.url, {}) == Health(alive=True, models=frozenset({"m", "n"}))
        assert [request.path for request in server.asked] == ["/v1/models", "/metrics", "/version"]


async def test_the_credential_is_sent_as_traffic_sends_it(check: HttpHealthCheck) -> None:
    async with model_list_server(key="right") as server:
        assert (await check(server.url, {"authorization": "Bearer right"})).alive
        refused = await check(server.url, {"authorization": "Bearer wrong"})
    assert not refused.alive
    assert refused.certain
    assert "unauthorised" in refused.reason
    assert "wrong" not in refused.reason


@pytest.mark.parametrize("status", [404, 405, 429, 501])
async def test_a_server_without_a_list_is_not_down(check: HttpHealthCheck, status: int) -> None:
    async with model_list_server(status=status, body="no such page") as server:
        assert await check(server.url, {}) == Health(alive=True)


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, "<html>welcome</html>", "text/html, not a list of models"),
        (200, '{"data": 1}', "not a list of models"),
        (200, "[]", "not a list of models"),
        (500, "boom", "HTTP 500"),
        (503, "loading", "HTTP 503"),
    ],
)
async def test_an_answer_that_is_no_list_is_a_miss(
    check: HttpHealthCheck, status: int, body: str, reason: str
) -> None:
    async with model_list_server(status=status, body=body) as server:
        seen = await check(server.url, {})
    assert not seen.alive
    assert not seen.certain
    assert reason in seen.reason


async def test_redirects_are_not_followed(check: HttpHealthCheck) -> None:
    async with model_list_server() as target:
        moved = {"location": f"{target.url}/v1/models"}
        async with model_list_server(status=302, body="", headers=moved) as server:
            assert not (await check(server.url, {})).alive
        assert target.asked == []


async def test_a_port_that_nobody_listens_on_is_certainly_down(check: HttpHealthCheck) -> None:
    async with model_list_server() as server:
        url = server.url
    seen = await check(url, {})
    assert not seen.alive
    assert seen.certain
    assert "no connection could be opened" in seen.reason


@asynccontextmanager
async def raw_server(port: int, greeting: bytes) -> AsyncIterator[str]:
    """Says its greeting and no more until the other side leaves; ends when all have left."""
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        with suppress(OSError):
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield f"http://127.0.0.1:{port}"
        await left.wait()


async def test_a_silent_server_is_a_miss_and_not_certainly_down(unused_tcp_port: int) -> None:
    async with checked_session() as session, raw_server(unused_tcp_port, b"") as url:
        seen = await HttpHealthCheck(session, time_limit_s=0.05)(url, {})
    assert not seen.alive
    assert not seen.certain
    assert "not answered within 0.05 s" in seen.reason


async def test_an_answer_without_end_is_cut_off(check: HttpHealthCheck) -> None:
    async with model_list_server(body="x" * (4 * 2**20 + 1)) as server:
        seen = await check(server.url, {})
    assert "bytes of answer" in seen.reason


async def test_a_server_that_speaks_no_http_is_a_miss(check: HttpHealthCheck, unused_tcp_port: int) -> None:
    async with raw_server(unused_tcp_port, b"SSH-2.0-OpenSSH\r\n") as url:
        seen = await check(url, {})
    assert not seen.alive
    assert not seen.certain
    assert "failed" in seen.reason


async def test_a_name_that_resolves_to_metadata_is_not_connected_to() -> None:
    async with model_list_server() as server:
        resolver = FakeResolver({"up.test": ["127.0.0.1", "169.254.169.254"]})
        async with checked_session(resolver) as session:
            seen = await HttpHealthCheck(session)(f"http://up.test:{server.port}", {})
        assert server.asked == []
    assert not seen.alive
    assert seen.certain
    assert "169.254.169.254" in seen.reason
    assert "never connected to" in seen.reason


async def test_a_name_is_resolved_and_checked_at_each_look() -> None:
    async with model_list_server() as server:
        resolver = FakeResolver({"up.test": ["127.0.0.1"]})
        async with checked_session(resolver) as session:
            check = HttpHealthCheck(session)
            assert (await check(f"http://up.test:{server.port}", {})).alive
            resolver.answers["up.test"] = ["169.254.169.254"]
            assert not (await check(f"http://up.test:{server.port}", {})).alive


async def test_an_unknown_name_is_a_miss() -> None:
    async with checked_session(FakeResolver({})) as session:
        seen = await HttpHealthCheck(session)("http://up.test:1", {})
    assert not seen.alive
    assert not seen.certain
    assert "does not resolve" in seen.reason


async def test_proxy_variables_are_not_obeyed(
    check: HttpHealthCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with model_list_server() as server:
        assert (await check(server.url, {})).alive


METRICS = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76e+09
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 120.0
vllm:generation_tokens_total{engine="1",model_name="m"} 7.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.76e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} NaN
vllm:num_requests_running{engine="0",model_name="m"} 3.0
"""


async def test_a_look_shows_when_the_process_was_started_its_version_and_counters(
    check: HttpHealthCheck,
) -> None:
    server = OpenAIServer(metrics=METRICS, version={"version": "0.32.0"}, card={"created": 12})
    with served(server.app) as url:
        seen = await check(url, {})
    assert seen.sighting == Sighting(
        process=Process(started_at=1.76e9, version="0.32.0"),
        created=12.0,
        counters={
            'vllm:generation_tokens_total{engine="0",model_name="m"}': 120.0,
            'vllm:generation_tokens_total{engine="1",model_name="m"}': 7.0,
        },
    )


async def test_what_is_not_said_or_garbled_is_not_known(check: HttpHealthCheck) -> None:
    server = OpenAIServer(
        metrics="process_start_time_seconds soon\n", version={"version": 3}, card={"created": 1e300}
    )
    with served(server.app) as url:
        seen = await check(url, {})
    assert (seen.alive, seen.sighting) == (True, Sighting())


async def test_pages_that_hang_take_nobody_down() -> None:
    server = OpenAIServer(hangs=frozenset({"/metrics", "/version"}))
    with served(server.app) as url:
        async with checked_session() as session:
            seen = await HttpHealthCheck(session, time_limit_s=1.0)(url, {})
    assert (seen.alive, seen.sighting) == (True, Sighting())


async def test_metrics_that_are_handed_out_once_are_left_to_others(check: HttpHealthCheck) -> None:
    async with model_list_server(body='{"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}') as server:
        assert (await check(server.url, {})).alive
        assert [request.path for request in server.asked] == ["/v1/models", "/version"]


async def test_an_address_is_asked_in_the_names_own_name(check: HttpHealthCheck) -> None:
    async with model_list_server() as server:
        seen = await check(f"http://llama.svc:{server.port}", {}, address="127.0.0.1")
        assert seen.alive
        assert {request.headers["host"] for request in server.asked} == {f"llama.svc:{server.port}"}


async def test_a_forbidden_address_is_not_connected_to(check: HttpHealthCheck) -> None:
    seen = await check("http://llama.svc:8000", {}, address="169.254.169.254")
    assert (seen.alive, seen.certain) == (False, True)
    assert "never connected to" in seen.reason
