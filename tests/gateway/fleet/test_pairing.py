from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet import pairing
from gateway.fleet.model import Backend, FleetSnapshot
from gateway.fleet.pairing import NOT_COMPARED, TRIED_AGAIN_AFTER_S, TRUSTED_S, Pairing, Pairings, compare
from gateway.proxy.upstream import BackendPool, Timeouts
from gateway.store.model import AnnouncedDraftModel, Runner

PIECES = tuple(f" word{number}" for number in range(3000))
TOKEN = "runner-token"


def with_piece(token_id: int, piece: str) -> tuple[str, ...]:
    return (*PIECES[:token_id], piece, *PIECES[token_id + 1 :])


@dataclass
class Speller:
    """A model server or a draft runner, reduced to its vocabulary.

    Attributes:
        status: What it answers where that is not 200.
        asked: Bodies that it was sent.
    """

    pieces: Sequence[str]
    status: int = 200
    asked: list[dict[str, object]] = field(default_factory=list)

    async def backend(self, request: web.Request) -> web.Response:
        """vLLM's `/detokenize`: an id that is not there is refused."""
        body = await self._read(request)
        if self.status != 200:
            return web.json_response({"detail": "no"}, status=self.status)
        if max(body["tokens"]) >= len(self.pieces):
            return web.json_response({"error": {"message": "no such id"}}, status=400)
        return web.json_response({"prompt": self._text(body["tokens"])})

    async def runner(self, request: web.Request) -> web.Response:
        """A draft runner's `/v1/detokenize`."""
        body = await self._read(request)
        if self.status != 200 or request.headers["authorization"] != f"Bearer {TOKEN}":
            return web.json_response({"error": {"code": "no"}}, status=self.status)
        return web.json_response({"texts": [self._text(ids) for ids in body["ids"]]})

    async def _read(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.asked.append(json.loads(json.dumps(body)))
        return body

    def _text(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in ids)


@dataclass
class Bench:
    """Both servers on real sockets, and the pairings that ask them."""

    target: Speller
    draft: Speller
    pairings: Pairings
    backends: list[Backend]
    runners: list[Runner]
    now: list[float]

    async def verdict(self, model: str = "m", fingerprint: str = "f1") -> Pairing:
        self.pairings.verdict("gpu-1", model, fingerprint)
        await self.pairings.compare_wanted_once()
        return self.pairings.verdict("gpu-1", model, fingerprint)


@contextlib.asynccontextmanager
async def bench(target: Sequence[str] = PIECES, draft: Sequence[str] = PIECES) -> AsyncIterator[Bench]:
    there, here = Speller(target), Speller(draft)
    async with (
        _served("/detokenize", there.backend) as url,
        _served("/v1/detokenize", here.runner) as runner_url,
    ):
        announced = AnnouncedDraftModel(name="small", fingerprint="f1", vocabulary_size=len(draft))
        backends = [Backend(name="gpu-1", url=url, models=("m",))]
        runners = [
            Runner(
                url=runner_url,
                node="n",
                drafters=("draft_model",),
                version="1",
                joined_at=0,
                seen_at=0,
                draft_model=announced,
            )
        ]
        now = [1000.0]
        pool = BackendPool(timeouts=Timeouts())
        async with httpx.AsyncClient(trust_env=False) as client:
            pairings = Pairings(
                pool=pool,
                client=client,
                token=TOKEN,
                fleet=lambda: FleetSnapshot(tuple(backends)),
                runners=lambda: runners,
                clock=lambda: now[0],
            )
            yield Bench(there, here, pairings, backends, runners, now)
        await pool.close()


@contextlib.asynccontextmanager
async def _served(path: str, answer: Callable[[web.Request], object]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post(path, answer)  # type: ignore[arg-type]
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


# --- the comparison --------------------------------------------------------------------------


def texts_of(pieces: Sequence[str]) -> pairing.Texts:
    async def texts(lists: Sequence[Sequence[int]]) -> list[str | None]:
        return ["".join(pieces[token] for token in ids) if max(ids) < len(pieces) else None for ids in lists]

    return texts


@given(
    pieces=st.lists(st.sampled_from(["a", "b", "ab", "ba", ""]), min_size=1, max_size=40),
    changes=st.dictionaries(st.integers(0, 39), st.sampled_from(["x", "ax", "xb", "y"]), max_size=3),
    at_once=st.integers(1, 16),
)
@settings(deadline=None)
async def test_the_first_id_that_differs_is_found(
    pieces: list[str], changes: dict[int, str], at_once: int
) -> None:
    other = [changes.get(token, piece) for token, piece in enumerate(pieces)]
    expected = min((token for token in changes if token < len(pieces)), default=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing, "IDS_IN_A_CALL", at_once)
        assert await compare(texts_of(pieces), texts_of(other), len(pieces)) == expected


async def test_two_splits_of_the_same_text_are_told_apart() -> None:
    assert await compare(texts_of(["a", "bc"]), texts_of(["ab", "c"]), 2) is not None


async def test_ids_that_the_target_has_besides_do_not_matter() -> None:
    assert await compare(texts_of(PIECES), texts_of(PIECES[:2000]), 2000) is None


# --- verdicts --------------------------------------------------------------------------------


async def test_the_same_tables_agree() -> None:
    async with bench() as servers:
        assert await servers.verdict() == Pairing(True, "their tokenizers agree on all 3,000 ids")


@pytest.mark.parametrize("token_id", [0, 5, 1023, 1024, 2999])
async def test_tables_that_differ_in_one_id_are_refused_with_that_id_named(token_id: int) -> None:
    async with bench(draft=with_piece(token_id, " other")) as servers:
        verdict = await servers.verdict()
    assert verdict.agrees is False
    assert f"first at id {token_id}: " in verdict.sentence
    assert f"spells it {PIECES[token_id]!r}" in verdict.sentence
    assert "' other'" in verdict.sentence


async def test_an_id_that_the_target_lacks_is_refused() -> None:
    async with bench(target=PIECES[:2500]) as servers:
        verdict = await servers.verdict()
    assert verdict.agrees is False
    assert "first at id 2500: the target does not have it" in verdict.sentence


async def test_before_the_comparison_nothing_is_known() -> None:
    async with bench() as servers:
        assert servers.pairings.verdict("gpu-1", "m", "f1") == NOT_COMPARED
        assert NOT_COMPARED.agrees is None


async def test_who_can_wait_gets_the_verdict_at_once_and_both_sides_are_asked_only_once() -> None:
    async with bench() as servers:
        verdicts = await asyncio.gather(*(servers.pairings.settled("gpu-1", "m") for _ in range(3)))
        asked = len(servers.target.asked)
        await servers.pairings.settled("gpu-1", "m")
        assert len(servers.target.asked) == asked
    assert [verdict.agrees for verdict in verdicts if verdict] == [True] * 3


async def test_without_a_draft_model_there_is_nothing_to_settle() -> None:
    async with bench() as servers:
        servers.runners.clear()
        assert await servers.pairings.settled("gpu-1", "m") is None


async def test_the_target_is_asked_for_the_model_that_is_meant() -> None:
    async with bench() as servers:
        await servers.verdict("m")
        assert {asked["model"] for asked in servers.target.asked} == {"m"}


@pytest.mark.parametrize("status", [401, 404, 429, 500])
async def test_a_target_that_cannot_be_asked_is_no_verdict(status: int) -> None:
    async with bench() as servers:
        servers.target.status = status
        verdict = await servers.verdict()
    assert verdict.agrees is None
    assert f"answered HTTP {status} to /detokenize" in verdict.sentence


@pytest.mark.parametrize("status", [401, 503])
async def test_a_runner_that_cannot_be_asked_is_no_verdict(status: int) -> None:
    async with bench() as servers:
        servers.draft.status = status
        verdict = await servers.verdict()
    assert verdict.agrees is None
    assert f"answered HTTP {status} to /v1/detokenize" in verdict.sentence


async def test_servers_that_are_away_are_no_verdict() -> None:
    async with bench() as servers:
        servers.backends[0] = Backend(name="gpu-1", url="http://127.0.0.1:9", models=("m",))
        assert (await servers.verdict()).agrees is None
        assert "no draft runner with the draft model f2" in (await servers.verdict(fingerprint="f2")).sentence
        servers.backends.clear()
        assert "no backend is named 'gpu-1' any more" in (await servers.verdict("other")).sentence


async def test_with_several_draft_models_one_that_does_not_agree_decides() -> None:
    async with bench() as servers:
        assert (await servers.verdict()).agrees
        assert servers.pairings.of_live("gpu-1", "m") == await servers.verdict()
        other = AnnouncedDraftModel(name="other", fingerprint="a0", vocabulary_size=5)
        servers.runners.append(replace(servers.runners[0], draft_model=other))
        assert servers.pairings.of_live("gpu-1", "m") == NOT_COMPARED


async def test_without_a_draft_model_there_is_no_verdict() -> None:
    async with bench() as servers:
        servers.runners[0] = replace(servers.runners[0], draft_model=None)
        assert servers.pairings.of_live("gpu-1", "m") is None


# --- when it is compared ---------------------------------------------------------------------


async def test_a_verdict_is_kept_for_its_backend_model_and_fingerprint() -> None:
    async with bench() as servers:
        await servers.verdict()
        calls = len(servers.target.asked)
        assert (await servers.verdict()).agrees
        assert len(servers.target.asked) == calls
        assert servers.pairings.verdict("gpu-1", "m", "f2") == NOT_COMPARED
        assert servers.pairings.verdict("gpu-1", "m2", "f1") == NOT_COMPARED
        assert servers.pairings.verdict("gpu-2", "m", "f1") == NOT_COMPARED


@pytest.mark.parametrize(("status", "wait_s"), [(500, TRIED_AGAIN_AFTER_S), (200, TRUSTED_S)])
async def test_it_is_compared_again_after_a_while(status: int, wait_s: float) -> None:
    async with bench() as servers:
        servers.target.status = status
        await servers.verdict()
        servers.target.status = 200
        servers.target.pieces = with_piece(7, " other")
        servers.now[0] += wait_s - 1
        assert (await servers.verdict()).agrees is not False
        servers.now[0] += 1
        assert (await servers.verdict()).agrees is False
