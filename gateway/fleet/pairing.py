"""Whether a backend's model and a draft model mean the same texts by the same token ids.

A pair that does not drafts garbage in silence (public report B01). Nothing but the two servers' own
`/detokenize` is believed; every id of the draft model is compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import httpx
import orjson

from gateway.errors import BackendError
from gateway.fleet.model import Backend, BackendState, FleetSnapshot
from gateway.proxy.json_calls import json_call, read_object
from gateway.proxy.upstream import BackendPool, Reply
from gateway.store.model import AnnouncedDraftModel, Runner

IDS_IN_A_CALL = 1024
"""Ids that are compared by one call to either side."""

TIMEOUT_S = 20.0
MAX_ANSWER_BYTES = 4 * 1024 * 1024
TRIED_AGAIN_AFTER_S = 60.0
"""A comparison that could not be made is made again when it is asked for after this."""

TRUSTED_S = 3600.0
"""One that was made, after this: another model may be served under the name by then."""

_REFUSED = frozenset({400, 422})
"""How servers answer to an id that they do not have."""

logger = logging.getLogger(__name__)

Texts = Callable[[Sequence[Sequence[int]]], Awaitable[Sequence[str | None]]]
"""The text of each list of ids; None for a list that holds an id which that side does not have."""


class NotComparable(Exception):
    """The two could not be compared; the message says why."""


class _Key(NamedTuple):
    """What a verdict is about."""

    backend: str
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Pairing:
    """A verdict.

    Attributes:
        agrees: Whether the draft model may draft for the backend's model; None while that is not known.
        sentence: Why.
    """

    agrees: bool | None
    sentence: str


@dataclass(frozen=True, slots=True)
class _Known:
    pairing: Pairing
    again_at: float


NOT_COMPARED = Pairing(None, "their tokenizers have not been compared yet")


async def compare(target: Texts, draft: Texts, count: int) -> int | None:
    """Find the first id below `count` that means different texts, or that the target lacks; None without one.

    Raises:
        NotComparable: One of the two could not be asked.
    """
    for start in range(0, count, IDS_IN_A_CALL):
        ids = range(start, min(count, start + IDS_IN_A_CALL))
        if await _differ(target, draft, ids):
            return await _first_differing(target, draft, ids)
    return None


async def _first_differing(target: Texts, draft: Texts, ids: range) -> int:
    """The last id of the shortest beginning of `ids` that differs."""
    alike, differing = 0, len(ids)
    while differing - alike > 1:
        middle = (alike + differing) // 2
        if await _differ(target, draft, ids[:middle]):
            differing = middle
        else:
            alike = middle
    return ids[alike]


async def _differ(target: Texts, draft: Texts, ids: range) -> bool:
    # In one order, two different splits of the same text would look alike; not in both.
    lists = [list(ids), list(reversed(ids))]
    theirs, ours = await target(lists), await draft(lists)
    return None in theirs or list(theirs) != list(ours)


class Pairings:
    """Verdicts on backends' models and draft models, each compared when first asked for.

    Args:
        pool: Connections to backends; adds each backend's own key.
        client: Makes the calls to draft runners; its owner closes it.
        token: The runner token.
        fleet: The backends as they are now.
        runners: The draft runners that have joined lately.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        pool: BackendPool,
        client: httpx.AsyncClient,
        token: str,
        fleet: Callable[[], FleetSnapshot],
        runners: Callable[[], Iterable[Runner]],
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._client = client
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._fleet = fleet
        self._runners = runners
        self._clock = clock
        self._known: dict[_Key, _Known] = {}
        self._wanted: dict[_Key, None] = {}
        self._asked = asyncio.Event()
        self._comparing = asyncio.Lock()

    def verdict(self, backend: str, model: str, fingerprint: str) -> Pairing:
        """What is known now. Where that is nothing, a comparison begins soon, in the background.

        Args:
            backend: A backend's name.
            model: One that it serves.
            fingerprint: Of the draft model, as its runner announced it.
        """
        key = _Key(backend, model, fingerprint)
        known = self._known.get(key)
        if known is None or self._clock() >= known.again_at:
            self._wanted[key] = None
            self._asked.set()
        return known.pairing if known else NOT_COMPARED

    def of_live(self, backend: str, model: str) -> Pairing | None:
        """The verdict on the draft models there are now, on one that does not agree if any; None without one.

        Args:
            backend: A backend's name.
            model: One that it serves.
        """
        loaded = {runner.draft_model.fingerprint for runner in self._runners() if runner.draft_model}
        verdicts = [self.verdict(backend, model, fingerprint) for fingerprint in sorted(loaded)]
        return min(verdicts, key=lambda pairing: pairing.agrees is True, default=None)

    async def settled(self, backend: str, model: str) -> Pairing | None:
        """As `of_live`, after comparing what has not been compared yet.

        Args:
            backend: A backend's name.
            model: One that it serves.
        """
        if self.of_live(backend, model) is NOT_COMPARED:
            await self.compare_wanted_once()
        return self.of_live(backend, model)

    async def run(self) -> None:
        """Compare what is asked for, until cancelled."""
        while True:
            await self._asked.wait()
            await self.compare_wanted_once()

    async def compare_wanted_once(self) -> None:
        """Compare every pair that was asked for since the last time, and wait for those under way."""
        async with self._comparing:
            self._asked.clear()
            wanted, self._wanted = self._wanted, {}
            for key in wanted:
                await self._learn(key)

    async def _learn(self, key: _Key) -> None:
        pairing = await self._compared(key)
        wait_s = TRIED_AGAIN_AFTER_S if pairing.agrees is None else TRUSTED_S
        self._known[key] = _Known(pairing, self._clock() + wait_s)
        log = logger.info if pairing.agrees else logger.warning
        log("%s on %s and draft model %s: %s", key.model, key.backend, key.fingerprint, pairing.sentence)

    async def _compared(self, key: _Key) -> Pairing:
        try:
            runner, draft_model = self._drafting(key.fingerprint)
            target = _TargetTexts(self._pool, self._backend(key.backend), key.model)
            draft = _DraftTexts(self._client, self._headers, runner.url)
            differing = await compare(target, draft, draft_model.vocabulary_size)
            if differing is None:
                return Pairing(True, f"their tokenizers agree on all {draft_model.vocabulary_size:,} ids")
            (theirs,), (ours,) = await target([[differing]]), await draft([[differing]])
        except NotComparable as error:
            return Pairing(None, f"their tokenizers could not be compared: {error}")
        spelled = "does not have it" if theirs is None else f"spells it {theirs!r}"
        return Pairing(
            False,
            f"their tokenizers differ, first at id {differing}: the target {spelled}, the draft model spells "
            f"it {ours!r}; a draft model needs its target's tokenizer",
        )

    def _backend(self, name: str) -> Backend:
        instances = [backend for backend in self._fleet().backends if backend.name == name]
        if instances:
            return min(instances, key=lambda backend: backend.state is not BackendState.UP)
        raise NotComparable(f"no backend is named {name!r} any more")

    def _drafting(self, fingerprint: str) -> tuple[Runner, AnnouncedDraftModel]:
        for runner in self._runners():
            if runner.draft_model is not None and runner.draft_model.fingerprint == fingerprint:
                return runner, runner.draft_model
        raise NotComparable(f"no draft runner with the draft model {fingerprint} is there")


class _TargetTexts:
    """A backend's own `/detokenize`, in vLLM's shape."""

    def __init__(self, pool: BackendPool, backend: Backend, model: str) -> None:
        self._pool = pool
        self._backend = backend
        self._model = model

    async def __call__(self, lists: Sequence[Sequence[int]]) -> list[str | None]:
        return [await self._text(ids) for ids in lists]

    async def _text(self, ids: Sequence[int]) -> str | None:
        call = json_call("/detokenize", {"model": self._model, "tokens": ids})
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._pool.open(self._backend, call)
                try:
                    return await self._read(reply)
                finally:
                    reply.close()
        except BackendError as error:
            raise NotComparable(str(error)) from None
        except TimeoutError:
            raise NotComparable(f"backend {self._backend.name!r} gave no text in {TIMEOUT_S:g} s") from None

    async def _read(self, reply: Reply) -> str | None:
        if reply.status in _REFUSED:
            return None
        answer = await read_object(reply, limit=MAX_ANSWER_BYTES)
        text = (answer or {}).get("prompt") if reply.status == HTTPStatus.OK else None
        if not isinstance(text, str):
            raise NotComparable(f"backend {self._backend.name!r} answered HTTP {reply.status} to /detokenize")
        return text


class _DraftTexts:
    """A draft runner's `/v1/detokenize`."""

    def __init__(self, client: httpx.AsyncClient, headers: Mapping[str, str], url: str) -> None:
        self._client = client
        self._headers = headers
        self._url = url

    async def __call__(self, lists: Sequence[Sequence[int]]) -> list[str | None]:
        body = orjson.dumps({"drafter": "draft_model", "ids": lists})
        try:
            reply = await self._client.post(
                f"{self._url}/v1/detokenize", content=body, headers=self._headers, timeout=TIMEOUT_S
            )
        except httpx.HTTPError as error:
            raise NotComparable(f"the draft runner at {self._url}: {type(error).__name__}") from None
        texts = _texts(reply) if reply.status_code == HTTPStatus.OK else None
        if not isinstance(texts, list) or len(texts) != len(lists):
            raise NotComparable(
                f"the draft runner at {self._url} answered HTTP {reply.status_code} to /v1/detokenize"
            )
        return texts


def _texts(reply: httpx.Response) -> object:
    try:
        answer = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        return None
    return answer.get("texts") if isinstance(answer, dict) else None
