from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest

from draftrunner.drafters import make_drafters
from draftrunner.service import create_app
from gateway.shadow.runner import LONGEST_WAIT_S, Replay, ReplayFailed, RunnerClient, RunnerUnavailable

TOKEN = "runner-token"
COUNTS = {
    "passes": 2,
    "steps": 1,
    "draft_tokens": 5,
    "accepted_tokens": 2,
    "accepted_by_position": [1, 1, 0, 0, 0],
    "passes_by_drafts": {"0": 1, "5": 1},
    "tokens_per_pass": 2.0,
    "acceptance_rate": 0.4,
    "per_step_drafted": [5],
}


@dataclass
class Joined:
    url: str
    drafters: tuple[str, ...] = ("ngram",)


class Bench:
    """A client, and the runners that it can see: what each answers, and who was asked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.answers: dict[str, Callable[[httpx.Request], httpx.Response]] = {}
        self.asked: list[str] = []
        self.runners: list[Joined] = []
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        self.client = RunnerClient(
            client=self.http, runners=lambda: self.runners, token=TOKEN, clock=lambda: self.now
        )

    def join(self, name: str, answer: Callable[[httpx.Request], httpx.Response], *drafters: str) -> None:
        self.answers[name] = answer
        self.runners.append(Joined(f"http://{name}", drafters or ("ngram",)))

    async def replay(self) -> Replay:
        return await self.client.replay(
            prompt_ids=[1, 2],
            answer_ids=[3, -1],
            drafter="ngram",
            profile="embedded",
            ks=[5],
            tenant="search",
            started_at=1000.0,
            max_tokens=None,
        )

    async def why_unavailable(self) -> str:
        with pytest.raises(RunnerUnavailable) as unavailable:
            await self.replay()
        return str(unavailable.value)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        return self.answers[request.url.host](request)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.http.aclose()


def well(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"drafter": "ngram", "profile": "embedded", "curve": {"5": COUNTS}})


def dead(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def answers(status: int, body: object = None) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(status, json=body)


async def test_a_real_runner_takes_what_is_sent_and_sends_what_is_read() -> None:
    transport = httpx.ASGITransport(create_app(token=TOKEN, version="1", drafters=make_drafters()))
    async with httpx.AsyncClient(transport=transport) as http:
        client = RunnerClient(
            client=http, runners=lambda: [Joined("http://runner")], token=TOKEN, clock=lambda: 0.0
        )
        replay = await client.replay(
            prompt_ids=[1, 2, 3, 4, 1, 2],
            answer_ids=[3, 4, 1, 2, 3, -1],
            drafter="ngram",
            profile="embedded",
            ks=[1, 5],
            tenant="search",
            started_at=1000.0,
            max_tokens=None,
        )
    assert (replay.drafter, replay.profile, set(replay.curve)) == ("ngram", "embedded", {1, 5})
    assert replay.curve[5].accepted_tokens == 4
    assert len(replay.curve[5].accepted_by_position) == 5


async def test_a_real_runner_drafts_from_the_tenants_earlier_answers_for_its_later_requests_alone() -> None:
    transport = httpx.ASGITransport(create_app(token=TOKEN, version="1", drafters=make_drafters()))
    later = time.time() + 3600
    async with httpx.AsyncClient(transport=transport) as http:
        client = RunnerClient(
            client=http,
            runners=lambda: [Joined("http://runner", ("suffix",))],
            token=TOKEN,
            clock=lambda: 0.0,
        )
        accepted = []
        for tenant, started_at in [("a", later), ("b", later), ("a", 1000.0), ("a", later)]:
            replay = await client.replay(
                prompt_ids=[1, 2],
                answer_ids=[3, 4, 5],
                drafter="suffix",
                profile="embedded",
                ks=[1],
                tenant=tenant,
                started_at=started_at,
                max_tokens=None,
            )
            accepted.append(replay.curve[1].accepted_tokens)
    assert accepted == [0, 0, 0, 1]


async def test_the_runner_token_is_sent(bench: Bench) -> None:
    sent: list[str] = []
    bench.join("a", lambda request: sent.append(request.headers["authorization"]) or well(request))  # type: ignore[func-returns-value]
    await bench.replay()
    assert sent == [f"Bearer {TOKEN}"]


async def test_nobody_is_asked_when_nobody_has_joined(bench: Bench) -> None:
    assert "no draft runner" in await bench.why_unavailable()


async def test_whether_anybody_could_be_asked_is_found_out_without_asking(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunnerUnavailable, match="has joined"):
        bench.client.check("ngram")
    bench.join("a", dead)
    bench.client.check("ngram")
    await bench.why_unavailable()
    with pytest.raises(RunnerUnavailable, match="did not answer lately"):
        bench.client.check("ngram")
    bench.now += LONGEST_WAIT_S
    bench.client.check("ngram")
    assert bench.asked == ["a"]
    assert len(caplog.records) == 1


async def test_a_runner_without_the_drafter_is_not_asked(bench: Bench) -> None:
    bench.join("a", well, "eagle3")
    assert "'ngram'" in await bench.why_unavailable()
    assert bench.asked == []


async def test_another_runner_is_asked_when_one_is_dead(bench: Bench) -> None:
    bench.join("a", dead)
    bench.join("b", well)
    await bench.replay()
    assert bench.asked == ["a", "b"]


async def test_a_dead_runner_costs_one_try_now_and_then(bench: Bench) -> None:
    bench.join("a", dead)
    for _ in range(1000):
        assert "http://a" in await bench.why_unavailable()
        bench.now += 0.1
    assert len(bench.asked) <= 100.0 / LONGEST_WAIT_S + 5


@pytest.mark.parametrize("status", [401, 404, 500, 502])
async def test_a_runner_that_cannot_answer_is_left_alone(bench: Bench, status: int) -> None:
    bench.join("a", answers(status))
    assert str(status) in await bench.why_unavailable()
    await bench.why_unavailable()
    assert bench.asked == ["a"]


async def test_a_busy_runner_is_asked_again_at_once(bench: Bench) -> None:
    bench.join("a", answers(503))
    await bench.why_unavailable()
    bench.answers["a"] = well
    await bench.replay()


async def test_going_away_and_coming_back_are_logged_once_each(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.join("a", dead)
    with caplog.at_level(logging.INFO, "gateway.shadow.runner"):
        for _ in range(3):
            await bench.why_unavailable()
        bench.answers["a"] = well
        bench.now += LONGEST_WAIT_S
        for _ in range(3):
            await bench.replay()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_drafter_that_nobody_has_is_logged_once_while_another_is_replayed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.join("a", well)
    with caplog.at_level(logging.INFO, "gateway.shadow.runner"):
        for _ in range(3):
            await bench.replay()
            with pytest.raises(RunnerUnavailable, match="'draft_model'"):
                bench.client.check("draft_model")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_refusal_is_not_an_absence(bench: Bench) -> None:
    bench.join("a", answers(400, {"error": {"message": "ids 17 23", "code": "invalid_request"}}))
    with pytest.raises(ReplayFailed, match=r"HTTP 400: invalid_request$"):
        await bench.replay()
    bench.answers["a"] = well
    await bench.replay()


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"drafter": "ngram", "profile": "embedded", "curve": {}},
        {"drafter": "ngram", "profile": "embedded", "curve": {"4": COUNTS}},
        {"drafter": "ngram", "profile": "embedded", "curve": {"5": COUNTS | {"steps": "many"}}},
    ],
    ids=str,
)
async def test_an_answer_without_the_counts_asked_for_has_failed(bench: Bench, body: object) -> None:
    bench.join("a", answers(200, body))
    with pytest.raises(ReplayFailed):
        await bench.replay()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"error": "no"}'])
async def test_a_refusal_in_another_shape_has_failed(bench: Bench, body: bytes) -> None:
    bench.join("a", lambda request: httpx.Response(413, content=body))
    with pytest.raises(ReplayFailed, match="no code"):
        await bench.replay()
