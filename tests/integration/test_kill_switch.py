"""From a kill to the last drafted token, with four workers: two seconds, also with the store down."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.evidence.loop_costs import CostKey, load_band
from gateway.store.store import Store
from tests.fakes.processes import Stack, until
from tests.fakes.standings import costs
from tests.fakes.stores import store_url

pytestmark = [pytest.mark.integration, pytest.mark.slow]

logger = logging.getLogger(__name__)

WORKERS = 4
PROMISED_S = 2.0
WATCHED_S = 4.0
"""Of counters, after a kill: what goes on beyond the promise is seen."""

STREAMS = 12
"""At once, so that the engine takes long enough over each."""

POLICY = """
version: 1
rules:
  - {name: shadow, match: {tenant: shadow}, mode: shadow, draft: ngram}
  - name: loop
    match: {tenant: loop}
    mode: prod
    experimental: true
    draft: ngram
    prod: {executor: gateway_loop, control: {fraction: 0}}
    guardrails: {min_multiplier: 0}
  - name: engine
    match: {tenant: [engine, other]}
    mode: prod
    experimental: true
    draft: ngram
    prod: {executor: in_engine, control: {fraction: 0}}
"""
TENANTS = ("engine", "loop", "shadow", "other", "off")


class Site:
    """Four workers before the embedded backend, their clients, and what the parts count."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.file = stack.folder / "data" / "kill"
        self._keys = {tenant: stack.key(tenant) for tenant in TENANTS}
        self._asked = 0
        until(self._keys_are_known, "the keys known to every worker")

    def ask(self, tenant: str, *, tokens: int = 32) -> tuple[str, str]:
        """A request's id, and its whole answer."""
        self._asked += 1
        request_id = f"{tenant}-{self._asked}-{time.monotonic_ns()}"
        answer = httpx.post(
            f"{self.stack.gateway.url}/v1/chat/completions",
            json={
                "model": self.stack.model,
                "messages": [{"role": "user", "content": "one two three one two three one two"}],
                "temperature": 0,
                "max_tokens": tokens,
            },
            headers={"authorization": f"Bearer {self._keys[tenant]}", "x-request-id": request_id},
            timeout=120.0,
            trust_env=False,
        )
        return request_id, str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

    def stage(self, tenant: str) -> dict[str, Any]:
        """The stage record of a short request."""
        return self.stack.stage_of(self.ask(tenant)[0])

    def counted(self, url: str, name: str, *, having: str = "") -> float:
        """The sum of a counter's series."""
        page = httpx.get(f"{url}/metrics", trust_env=False, timeout=30.0).text
        found = re.findall(rf"^{name}(?:{{([^}}]*)}})? ([0-9.e+]+)$", page, re.MULTILINE)
        return sum(float(value) for labels, value in found if having in labels)

    def drafted_by_engine(self) -> float:
        return self.counted(self.stack.backend.url, "ace_embedded_spec_draft_tokens_total")

    def prompted(self) -> float:
        """Prompt tokens that the engine was given; every step of a loop is a prompt."""
        return self.counted(self.stack.backend.url, "ace_embedded_prompt_tokens_total")

    def replayed(self) -> float:
        return self.counted(self.stack.gateway.url, "ace_spec_draft_tokens_total", having='mode="shadow"')

    def resume(self) -> None:
        """Lift whatever kills, and wait until every worker has seen it."""
        self.file.unlink(missing_ok=True)
        self.stack.admin.delete("/kill").raise_for_status()
        until(lambda: self._speculates_everywhere(), "speculation after the kill was lifted")

    def _keys_are_known(self) -> bool:
        url = f"{self.stack.gateway.url}/v1/models"
        asked = [{"authorization": f"Bearer {key}"} for key in self._keys.values()] * WORKERS
        return all(httpx.get(url, headers=headers, trust_env=False).is_success for headers in asked)

    def _speculates_everywhere(self) -> bool:
        # Each connection is one worker's, and a new one may be any's.
        return all(self.stage("engine")["action"] == "speculate" for _ in range(2 * WORKERS))


@pytest.fixture(scope="module")
def site(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("kill")
    with Stack(folder, model=str(tiny_model), policy=POLICY, env={"ACE_WORKERS": str(WORKERS)}) as stack:
        asyncio.run(_calibrated(folder, stack.model))
        site = Site(stack)
        until(lambda: site.stage("loop")["action"] == "speculate", "a loop that is driven")
        yield site


@pytest.fixture(autouse=True)
def resumed(site: Site) -> Iterator[None]:
    yield
    site.resume()


async def _calibrated(folder: Path, model: str) -> None:
    """Costs by which no loop is ever slower than plain decoding."""
    store = Store(store_url(folder))
    for running in (1, 2, 4, 8, 16):
        key = CostKey(
            backend="embedded", model=model, strategy="scored", drafter="ngram", band=load_band(running)
        )
        await store.calibrations.keep(costs(key, time.time(), plain=600.0))
    await store.close()


@contextmanager
def store_down(site: Site) -> Iterator[None]:
    """Nobody can write to the store."""
    locking = sqlite3.connect(site.stack.folder / "data" / "ace.db", isolation_level=None, timeout=30.0)
    locking.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        locking.rollback()
        locking.close()


@contextmanager
def store_up(_: Site) -> Iterator[None]:
    yield


def by_rest(site: Site) -> None:
    site.stack.admin.post("/kill", json={"reason": "a test"}).raise_for_status()


def by_file(site: Site) -> None:
    site.file.touch()


WAYS = pytest.mark.parametrize(
    ("store", "kill"), [(store_up, by_rest), (store_down, by_file)], ids=["rest", "file with the store down"]
)


def last_move(count: Callable[[], float], kill: Callable[[], None]) -> float:
    """Seconds from a kill to the last time that a counter moved."""
    killing = threading.Thread(target=kill)
    seen = count()
    began = moved_at = time.monotonic()
    killing.start()
    while (now := time.monotonic()) < began + WATCHED_S:
        if (counted := count()) != seen:
            seen, moved_at = counted, now
        time.sleep(0.02)
    killing.join()
    logger.info("the counter moved last %.2f s after the kill", moved_at - began)
    return moved_at - began


@contextmanager
def asking(site: Site, tenant: str, *, clients: int, tokens: int) -> Iterator[list[Future[tuple[str, str]]]]:
    """Clients that ask again as soon as they are answered, until the block ends; all their answers."""
    answers: list[Future[tuple[str, str]]] = []
    over = threading.Event()

    def client() -> None:
        while not over.is_set():
            done: Future[tuple[str, str]] = Future()
            try:
                done.set_result(site.ask(tenant, tokens=tokens))
            except httpx.HTTPError as error:
                done.set_exception(error)
            answers.append(done)

    with ThreadPoolExecutor(clients) as threads:
        for _ in range(clients):
            threads.submit(client)
        try:
            yield answers
        finally:
            over.set()


@WAYS
def test_the_engine_drafts_no_more_within_two_seconds(
    site: Site, store: Callable[[Site], Any], kill: Callable[[Site], None]
) -> None:
    _, plain = site.ask("off", tokens=400)
    with asking(site, "engine", clients=STREAMS, tokens=400) as answers:
        before = site.drafted_by_engine()
        until(lambda: site.drafted_by_engine() > before + 200, "drafting under way")
        with store(site):
            took = last_move(site.drafted_by_engine, lambda: kill(site))
    assert took <= PROMISED_S
    said = [answer.result() for answer in answers]
    assert {text for _, text in said} == {plain}, "what a kill cut short is whole and the same"
    stages = [site.stack.stage_of(request_id) for request_id, _ in said]
    cut = [stage for stage in stages if stage["action"] == "speculate" and stage["reason"] == "killed"]
    assert cut, "some were under way"
    assert all(stage["multiplier"] is None and stage["draft_tokens"] is not None for stage in cut)
    later = site.stage("engine")
    assert (later["action"], later["reason"]) == ("bypass", "killed")


@WAYS
def test_loops_draft_no_more_within_two_seconds(
    site: Site, store: Callable[[Site], Any], kill: Callable[[Site], None]
) -> None:
    _, plain = site.ask("off", tokens=400)
    with ThreadPoolExecutor(1) as client:
        before = site.prompted()
        answer = client.submit(site.ask, "loop", tokens=400)
        until(lambda: site.prompted() > before + 400, "steps of the loop")
        with store(site):
            took = last_move(site.prompted, lambda: kill(site))
        request_id, text = answer.result()
    assert took <= PROMISED_S
    assert text == plain
    stage = site.stack.stage_of(request_id)
    assert (stage["action"], stage["executor"], stage["reason"]) == ("speculate", "gateway_loop", "killed")


@WAYS
def test_nothing_is_replayed_any_more_within_two_seconds(
    site: Site, store: Callable[[Site], Any], kill: Callable[[Site], None]
) -> None:
    with asking(site, "shadow", clients=4, tokens=64) as answers:
        before = site.replayed()
        until(lambda: site.replayed() > before, "replays")
        with store(site):
            took = last_move(site.replayed, lambda: kill(site))
    assert took <= PROMISED_S
    last, _ = answers[-1].result()
    stage = site.stack.stage_of(last)
    assert (stage["action"], stage["reason"]) == ("skip", "killed")


def test_a_kill_of_one_tenant_leaves_the_others_speculating(site: Site) -> None:
    site.stack.admin.post("/kill", json={"tenant": "engine", "reason": "a test"}).raise_for_status()
    until(lambda: site.stage("engine")["reason"] == "killed", "the kill")
    assert site.stage("other")["action"] == "speculate"


def test_a_kill_survives_a_restart_and_lifting_it_resumes(site: Site) -> None:
    made = site.stack.admin.post("/kill", json={"reason": "a test"}).raise_for_status().json()
    site.stack.gateway.process.terminate()
    site.stack.gateway.process.wait()
    site.stack.gateway.start_again()
    stages = [site.stage("engine") for _ in range(2 * WORKERS)]
    assert {(stage["action"], stage["reason"]) for stage in stages} == {("bypass", "killed")}
    assert made["id"] in str(stages[0]["reason_detail"])
    shown = site.stack.admin.get("/kill").json()
    assert [kill["id"] for kill in shown["kills"]] == [made["id"]]


def test_a_kill_that_the_store_cannot_take_names_the_file_to_touch(site: Site) -> None:
    with store_down(site):
        refused = site.stack.admin.post("/kill", json={"reason": "a test"})
    assert refused.status_code == 503
    assert f"touch {site.file}" in refused.json()["error"]["message"]
    assert site.stage("engine")["action"] == "speculate"
