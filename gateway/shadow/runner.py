"""Replays by a draft runner, over HTTP; a runner that is away costs one cheap try now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.fleet.runners import KnownRunner

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 5.0
TIMEOUT = httpx.Timeout(30.0, connect=2.0)
"""Longest waits for a runner. One that is gone must not hold up the answers that wait."""

MAX_REPLAY_IDS = 131_072
"""Most prompt and answer ids, together, that a draft runner takes in one replay."""

_REFUSALS = frozenset({400, 413, 422})
_BUSY = frozenset({429, 503})

logger = logging.getLogger(__name__)


class ReplayCounts(BaseModel):
    """What a live run with one K would have counted (design.md 9)."""

    model_config = ConfigDict(frozen=True, strict=True)

    passes: int
    steps: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    passes_by_drafts: dict[str, int]
    tokens_per_pass: float | None


class Replay(BaseModel):
    """A runner's answer: counts for every K that was asked for."""

    model_config = ConfigDict(frozen=True, strict=True)

    drafter: str
    profile: str
    curve: dict[int, ReplayCounts]


class RunnerUnavailable(Exception):
    """No runner could be asked; the message says why."""


class ReplayFailed(Exception):
    """A runner was asked and gave no curve; the message says why, and shows no token."""


@dataclass(frozen=True, slots=True)
class _Away:
    retry_at: float
    wait_s: float


class RunnerClient:
    """Asks one of the runners that have joined.

    Logs once for each drafter when there is none left to ask, and once when there is again.

    Args:
        client: Makes the calls, with TIMEOUT; its owner closes it.
        runners: The runners that have joined lately.
        token: The runner token.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        client: httpx.AsyncClient,
        runners: Callable[[], Iterable[KnownRunner]],
        token: str,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._runners = runners
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._clock = clock
        self._away: dict[str, _Away] = {}
        self._unavailable: set[str] = set()

    def check(self, drafter: str) -> None:
        """Find out, without a call, whether anybody could be asked now.

        Raises:
            RunnerUnavailable: nobody that can draft with `drafter` has joined, or none answered lately.
        """
        try:
            self._ready(drafter)
        except RunnerUnavailable as unavailable:
            self._note_unavailable(drafter, str(unavailable))
            raise

    async def replay(
        self,
        *,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        drafter: str,
        profile: str,
        ks: Sequence[int],
        tenant: str,
        started_at: float,
        max_tokens: int | None,
    ) -> Replay:
        """Score an answer for every K in `ks`.

        Args:
            prompt_ids: The prompt as the target saw it.
            answer_ids: Every generated token; -1 as the last for one whose id is not known.
            drafter: The policy's word for it.
            profile: The engine whose habits are followed.
            ks: Draft tokens per step.
            tenant: Whose answer it is. The runner keeps it, and drafts from it for this tenant alone.
            started_at: Unix time of the request. What the runner has learnt since does not count.
            max_tokens: Most tokens that the answer could have had; None where that is not known.

        Raises:
            RunnerUnavailable: none has joined, or those that have did not answer.
            ReplayFailed: the runner refused, or its answer does not hold what was asked for.
        """
        asked = {
            "prompt_ids": prompt_ids,
            "answer_ids": answer_ids,
            "drafter": drafter,
            "profile": profile,
            "ks": ks,
            "tenant": tenant,
            "started_at": started_at,
            "max_tokens": max_tokens,
        }
        try:
            reply = await self._ask_one(self._ready(drafter), orjson.dumps(asked))
        except RunnerUnavailable as unavailable:
            self._note_unavailable(drafter, str(unavailable))
            raise
        self._note_available(drafter)
        return _read(reply, ks)

    def _ready(self, drafter: str) -> list[str]:
        """The runners to ask, by URL; at least one."""
        joined = [runner.url for runner in self._runners() if drafter in runner.drafters]
        if not joined:
            raise RunnerUnavailable(f"no draft runner that can draft with {drafter!r} has joined")
        now = self._clock()
        ready = [url for url in joined if url not in self._away or self._away[url].retry_at <= now]
        if not ready:
            raise RunnerUnavailable(f"{', '.join(joined)} did not answer lately")
        return ready

    async def _ask_one(self, urls: Iterable[str], body: bytes) -> httpx.Response:
        """The answer of the first that gives one."""
        failures: list[str] = []
        for url in urls:
            try:
                reply = await self._client.post(f"{url}/v1/replay", content=body, headers=self._headers)
            except httpx.HTTPError as error:
                failures.append(f"{url}: {type(error).__name__}")
                self._leave_alone(url)
                continue
            if reply.status_code == 200 or reply.status_code in _REFUSALS:
                self._away.pop(url, None)
                return reply
            failures.append(f"{url} answered HTTP {reply.status_code}")
            if reply.status_code not in _BUSY:
                self._leave_alone(url)
        raise RunnerUnavailable("; ".join(failures))

    def _leave_alone(self, url: str) -> None:
        last = self._away.get(url)
        wait_s = min(last.wait_s * 2, LONGEST_WAIT_S) if last else FIRST_WAIT_S
        self._away[url] = _Away(self._clock() + wait_s, wait_s)

    def _note_unavailable(self, drafter: str, why: str) -> None:
        if drafter not in self._unavailable:
            logger.warning(
                "No draft runner can be asked for %s (%s). Shadow answers go without its replay.",
                drafter,
                why,
            )
        self._unavailable.add(drafter)

    def _note_available(self, drafter: str) -> None:
        if drafter in self._unavailable:
            logger.info("A draft runner answers again; shadow answers are replayed for %s.", drafter)
        self._unavailable.discard(drafter)


def _read(reply: httpx.Response, ks: Sequence[int]) -> Replay:
    if reply.status_code != 200:
        raise ReplayFailed(f"{reply.url.host} answered HTTP {reply.status_code}: {_error_code(reply)}")
    try:
        replay = Replay.model_validate_json(reply.content)
    except ValidationError as error:
        raise ReplayFailed(f"{reply.url.host} sent no curve ({error.error_count()} complaints)") from None
    if missing := set(ks) - replay.curve.keys():
        raise ReplayFailed(f"{reply.url.host} left out K = {sorted(missing)}")
    return replay


def _error_code(reply: httpx.Response) -> str:
    try:
        body = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        return "no code"
    error = body.get("error") if isinstance(body, Mapping) else None
    return str(error.get("code"))[:60] if isinstance(error, Mapping) else "no code"
