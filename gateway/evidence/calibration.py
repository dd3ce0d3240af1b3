"""Times what a step of `gateway_loop` costs: a plain token, a verification call, drafting and its way.

The prompts are made up, and begin with a word that was never used before, so that no server answers from
what it computed for somebody else, nor anybody from what it computed for us.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any, TypeVar

import orjson

from gateway.errors import BackendError, CalibrationFailed
from gateway.evidence.loop_costs import MOST_DRAFTS, Calibration, CostKey, load_band
from gateway.evidence.sse import SseParser
from gateway.fleet.load import Load
from gateway.fleet.model import Backend
from gateway.loop.calls import open_call
from gateway.loop.errors import GoPlain
from gateway.loop.executor import PROFILE
from gateway.loop.runner import LoopRunners, LoopStart, RunnerLoop
from gateway.loop.strategies import COMPLETIONS, STRATEGIES, Choices, TargetAsk
from gateway.proxy.json_calls import ids_in
from gateway.proxy.upstream import BackendPool
from gateway.shadow.tokenize import Tokenize

VALID_S = 3600.0
"""How long a calibration counts: what else runs on the machine changes."""

DRAFTS = (0, 1, 3, 5, MOST_DRAFTS)
"""Lengths of a draft that are timed; those between are interpolated."""

CONTEXT_TOKENS = 192
"""Longest prompt; short enough for any model, long enough for a cache to matter."""

PLAIN_TOKENS = 16
FEWEST_PLAIN_TOKENS = 8
ROUNDS = 6
"""Times that everything is timed; the median counts."""

DRAFTING_STEPS = 4
"""Steps of each loop whose drafting is timed; its first is not, in which the prompt is read."""

TRIES = 20
"""Times that one call is made anew because the load changed meanwhile."""

PATIENCE_S = 30.0
"""Longest wait for the load to be what it is to be calibrated at."""

_LOOK_S = 0.02
_COLOURS = "red orange yellow green blue indigo violet black white grey brown pink\n"
_LINES = 16
_PERIOD = 32
_TENANT = "calibration"
_GREEDY: Mapping[str, Any] = {"temperature": 0}

Found = TypeVar("Found")


class CostMeter:
    """Calibrates one backend for one strategy.

    Args:
        pool: Connections to backends; adds each backend's own key.
        tokenize: Gives a prompt's ids.
        runners: Where the drafts come from.
        load: Client requests under way; a call that is timed counts as one more.
        now: Unix time.
        timer: Seconds from any fixed moment.
    """

    def __init__(
        self,
        *,
        pool: BackendPool,
        tokenize: Tokenize,
        runners: LoopRunners,
        load: Load,
        now: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._tokenize = tokenize
        self._runners = runners
        self._load = load
        self._now = now
        self._timer = timer

    async def measure(self, backend: Backend, keys: Sequence[CostKey]) -> list[Calibration]:
        """Time everything while the load is that of the keys: the target once, then each drafter.

        Args:
            backend: The one that the keys name.
            keys: At least one; they differ in their drafter only.

        Raises:
            CalibrationFailed: The backend or the runner did not do its part, or the load was never so.
        """
        try:
            # What the engine's gauge shows of our own calls is no load.
            with self._load.beside(backend.key, MOST_DRAFTS + 1):
                return await self._measured(backend, keys)
        except BackendError as error:
            raise CalibrationFailed(backend.name, str(error).rstrip(".")) from error
        except GoPlain as stopped:
            raise CalibrationFailed(backend.name, str(stopped)) from stopped

    async def _measured(self, backend: Backend, keys: Sequence[CostKey]) -> list[Calibration]:
        target = keys[0]
        prompt = await self._prompt(backend, target)
        plain, verify = await self._target(backend, target, prompt)
        drafting = {key: _medians(await self._drafting(key.drafter, prompt)) for key in keys}
        measured_at = self._now()
        return [
            Calibration(
                key=key,
                measured_at=measured_at,
                expires_at=measured_at + VALID_S,
                context_tokens=len(prompt),
                plain_seconds=plain,
                verify_seconds=verify,
                draft_seconds=seconds,
            )
            for key, seconds in drafting.items()
        ]

    async def _prompt(self, backend: Backend, key: CostKey) -> tuple[int, ...]:
        text = f"{secrets.token_hex(8)}\n" + _COLOURS * _LINES
        ids = await self._tokenize(backend, {"model": key.model, "prompt": text})
        if not ids or len(ids) <= _PERIOD:
            raise BackendError(f"Backend {backend.name!r} gives no ids for a prompt of ours.")
        return tuple(ids[:CONTEXT_TOKENS])

    async def _plain(self, backend: Backend, key: CostKey) -> float:
        """Seconds of a token of plain decoding."""
        prompt = await self._prompt(backend, key)
        body = TargetAsk(model=key.model, sampling=_GREEDY).body(
            prompt, max_tokens=PLAIN_TOKENS, stream=True, return_token_ids=True
        )
        return await self._at_load(key, partial(self._streamed, backend, body))

    async def _streamed(self, backend: Backend, body: Mapping[str, Any]) -> float:
        """Seconds of a token after the first chunk of a stream."""
        arrivals: list[tuple[float, int]] = []
        parser = SseParser()
        with closing(await open_call(self._pool, backend, COMPLETIONS, body)) as reply:
            async for piece in reply.chunks():
                at = self._timer()
                counts = [_count_ids(event.data) for event in parser.feed(piece) if event.data]
                arrivals += [(at, count) for count in counts if count]
        tokens = sum(count for _, count in arrivals)
        if len(arrivals) < 2 or tokens < FEWEST_PLAIN_TOKENS:
            raise BackendError(
                f"Backend {backend.name!r} streamed {tokens} of {PLAIN_TOKENS} ids for a prompt of ours."
            )
        (first_at, in_first), (last_at, _) = arrivals[0], arrivals[-1]
        if last_at <= first_at:
            raise BackendError(f"Backend {backend.name!r} streamed a whole answer of ours in one piece.")
        return (last_at - first_at) / (tokens - in_first)

    async def _target(
        self, backend: Backend, key: CostKey, prompt: Sequence[int]
    ) -> tuple[float, dict[int, float]]:
        """Seconds of a token of plain decoding, and of a verification call by its drafts.

        Each verification is held against the plain decoding of its own round, since a machine may be slower
        for seconds on end. What comes first is not counted: a server's first call is slower than all others.
        """
        step = await self._stepping(backend, key, prompt)
        await self._plain(backend, key)
        plain: list[float] = []
        relative: dict[int, list[float]] = {drafts: [] for drafts in DRAFTS}
        for _ in range(ROUNDS):
            plain.append(await self._plain(backend, key))
            for drafts in DRAFTS:
                seconds = await self._at_load(key, partial(step, drafts))
                relative[drafts].append(seconds / plain[-1])
        usual = median(plain)
        return usual, {drafts: usual * ratio for drafts, ratio in _medians(relative).items()}

    async def _stepping(
        self, backend: Backend, key: CostKey, prompt: Sequence[int]
    ) -> Callable[[int], Awaitable[float]]:
        """Return what times a verification call of so many drafts; each goes on from the last one."""
        strategy = STRATEGIES[key.strategy](
            pool=self._pool, backend=backend, ask=TargetAsk(model=key.model, sampling=_GREEDY)
        )
        context = list(prompt)
        context.append((await strategy.choices(context, ())).ids[0])  # the prefill, which is no step

        async def step(drafts: int) -> float:
            begun = self._timer()
            choices = await strategy.choices(context, prompt[:drafts])
            took = self._timer() - begun
            context.append(choices.ids[0])
            return took

        return step

    async def _drafting(self, drafter: str, prompt: Sequence[int]) -> dict[int, list[float]]:
        """Seconds from telling the runner what was chosen to having its next draft, by the drafts allowed."""
        period = prompt[-_PERIOD:]
        repeating = list(period) * 8
        seconds: dict[int, list[float]] = {}
        for k in DRAFTS[1:]:
            start = LoopStart(
                prompt_ids=repeating,
                drafter=drafter,
                profile=PROFILE,
                k=k,
                tenant=_TENANT,
                max_tokens=(k + 1) * (DRAFTING_STEPS + 2),
                plain_seconds_per_token=None,
            )
            async with self._runners.opened(start) as loop:
                seconds[k] = await self._steps(loop, period, len(repeating))
        # Without a draft the drafter has looked for one all the same.
        return {0: seconds[DRAFTS[1]], **seconds}

    async def _steps(self, loop: RunnerLoop, period: Sequence[int], written: int) -> list[float]:
        """Play a target that repeats its prompt, so that what copies has something to propose."""
        took: list[float] = []
        draft: tuple[int, ...] | None = ()
        while draft is not None and len(took) <= DRAFTING_STEPS:
            chosen = tuple(period[(written + place) % len(period)] for place in range(len(draft) + 1))
            begun = self._timer()
            verified = await loop.verify(draft, Choices(ids=chosen, ends=(False,) * len(chosen)))
            took.append(self._timer() - begun)
            written += len(verified.emitted)
            draft = verified.draft
        return took[1:]

    async def _at_load(self, key: CostKey, call: Callable[[], Awaitable[Found]]) -> Found:
        """What a call gives that was made, from beginning to end, at the load to calibrate at."""
        for _ in range(TRIES):
            await self._wait_for(key)
            found = await call()
            if self._is_at(key):
                return found
        raise CalibrationFailed(key.backend, f"requests came and went, so the load never stayed {key.band}")

    async def _wait_for(self, key: CostKey) -> None:
        until = self._timer() + PATIENCE_S
        while not self._is_at(key):
            if self._timer() >= until:
                raise CalibrationFailed(
                    key.backend,
                    f"the load was not {key.band} for {PATIENCE_S:g} s, but "
                    f"{load_band(self._load.running(key.place) + 1)}",
                )
            await asyncio.sleep(_LOOK_S)

    def _is_at(self, key: CostKey) -> bool:
        return load_band(self._load.running(key.place) + 1) == key.band


def _count_ids(data: bytes) -> int:
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return 0
    match chunk:
        case {"choices": [{"token_ids": ids}]}:
            return len(ids_in(ids) or ())
    return 0


def _medians(seconds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {drafts: median(found) for drafts, found in seconds.items()}
