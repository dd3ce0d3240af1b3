"""The gateway's end of `/v1/loop` on a draft runner: one connection is one answer.

Nothing that a runner says is believed: what it calls emitted has to follow from the target's own choices,
or the answer goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import aiohttp
import orjson

from gateway.fleet.runners import KnownRunner
from gateway.loop.errors import GoPlain, WhyPlain
from gateway.loop.strategies import Choices
from gateway.proxy.json_calls import ids_in

CONNECT_S = 2.0
"""Longest wait for a runner to take the loop on. One that is gone must not hold up an answer."""

FRAME_S = 5.0
"""Longest wait for a draft. Drafting takes milliseconds, and meanwhile the client's answer stands still."""

CLOSE_S = 0.25
"""Longest wait for a runner to say goodbye; the answer may be waiting to go on without it."""

_MAX_FRAME_BYTES = 64 * 1024
"""Room for a draft and the tokens emitted; a prompt is never sent back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStart:
    """The first frame: what is drafted for.

    Attributes:
        k: Most draft tokens per step.
        max_tokens: Most tokens that the loop is to emit.
        plain_seconds_per_token: What a token of plain decoding takes; the runner stops the loop when it is
            slower. None when that is not known.
    """

    prompt_ids: Sequence[int] = field(repr=False)
    drafter: str
    profile: str
    k: int
    tenant: str
    max_tokens: int
    plain_seconds_per_token: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What one pass came to.

    Attributes:
        emitted: The target's choices that are part of the answer; at least one.
        accepted: Draft tokens that are among them.
        ended: The answer ends with the last one emitted.
        draft: What to verify next; None when the loop has ended.
        slower_than_plain: It has ended because the runner measured that plain decoding would be faster.
    """

    emitted: tuple[int, ...]
    accepted: int
    ended: bool
    draft: tuple[int, ...] | None = None
    slower_than_plain: bool = False


class RunnerLoop:
    """One answer's loop, at a runner that has taken it on.

    Args:
        socket: The connection.
        start: What the runner was told.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, start: LoopStart) -> None:
        self._socket = socket
        self._start = start
        self._left = start.max_tokens

    async def begin(self) -> None:
        """Say what is drafted for. The first call is the prompt's prefill, and has no draft.

        Raises:
            GoPlain: The runner refuses, is gone, or asks for something else.
        """
        await self._tell({name.name: getattr(self._start, name.name) for name in fields(self._start)})
        if ids_in((await self._heard()).get("draft")) != ():
            raise _disagreed("drafts before the answer's first token")

    async def verify(self, draft: Sequence[int], choices: Choices) -> Verified:
        """Tell the runner what the target chose for `draft`; return what follows from it.

        Raises:
            GoPlain: The runner is gone, or says what does not follow.
        """
        await self._tell({"choices": choices.ids, "ends": choices.ends})
        said = await self._heard()
        emitted = ids_in(said.get("emitted")) or ()
        accepted = _accepted(draft, choices, emitted)
        if (said.get("drafted"), said.get("accepted")) != (len(draft), accepted):
            raise _disagreed("counts otherwise than the target's choices do")
        self._left -= len(emitted)
        ended = choices.ends[len(emitted) - 1]
        slower = said.get("stop") == WhyPlain.SLOWER_THAN_PLAIN
        over = ended or slower or not self._left
        return Verified(
            emitted=emitted,
            accepted=accepted,
            ended=ended,
            draft=None if over else self._next_draft(said.get("draft")),
            slower_than_plain=slower,
        )

    async def finish(self) -> None:
        """Tell the runner that all it has emitted is the answer, so that it may learn from it."""
        with contextlib.suppress(GoPlain):  # there is nothing left that it could spoil
            await self._tell({"answer_tokens": self._start.max_tokens - self._left})

    async def close(self) -> None:
        """Leave; the runner forgets what it has not been told to learn."""
        await self._socket.close()

    def _next_draft(self, said: object) -> tuple[int, ...]:
        draft = ids_in(said)
        if draft is None or len(draft) > min(self._start.k, self._left - 1):
            raise _disagreed("asks for something else than a draft that fits")
        return draft

    async def _tell(self, frame: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(FRAME_S):
                await self._socket.send_str(orjson.dumps(frame).decode())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _lost(type(error).__name__) from None

    async def _heard(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(FRAME_S):
                message = await self._socket.receive()
        except TimeoutError:
            raise _lost(f"it said nothing for {FRAME_S:g} s") from None
        if message.type is not aiohttp.WSMsgType.TEXT:
            # A runner's reason quotes nothing of what it was sent, and the protocol keeps it short.
            raise _lost(f"it closed with code {self._socket.close_code}: {message.extra or 'no reason'}")
        try:
            frame = orjson.loads(message.data)
        except orjson.JSONDecodeError:
            frame = None
        if not isinstance(frame, dict):
            raise _disagreed("sends what is no JSON object")
        return frame


class LoopRunners:
    """Opens loops at the draft runners that have joined.

    Args:
        session: Makes the connections; its owner closes it.
        runners: The runners that have joined lately.
        token: The runner token.
    """

    def __init__(
        self,
        *,
        session: aiohttp.ClientSession,
        runners: Callable[[], Iterable[KnownRunner]],
        token: str,
    ) -> None:
        self._session = session
        self._runners = runners
        self._headers = {"authorization": f"Bearer {token}"}

    @contextlib.asynccontextmanager
    async def opened(self, start: LoopStart) -> AsyncIterator[RunnerLoop]:
        """A loop at the first runner that takes it on, until the block is left.

        Raises:
            GoPlain: None does.
        """
        loop = await self._taken_on(start)
        try:
            yield loop
        finally:
            await loop.close()

    async def _taken_on(self, start: LoopStart) -> RunnerLoop:
        failures = []
        for runner in self._runners():
            if start.drafter not in runner.drafters:
                continue
            try:
                return await self._begun(runner.url, start)
            except (GoPlain, TimeoutError, aiohttp.ClientError, OSError) as error:
                what = str(error) if isinstance(error, GoPlain) else type(error).__name__
                failures.append(f"{runner.url}: {what}")
        tried = "; ".join(failures) or f"none that can draft with {start.drafter!r} has joined"
        raise GoPlain(WhyPlain.NO_RUNNER, f"no draft runner takes the loop on ({tried})")

    async def _begun(self, url: str, start: LoopStart) -> RunnerLoop:
        async with asyncio.timeout(CONNECT_S):
            socket = await self._session.ws_connect(
                f"{url}/v1/loop",
                headers=self._headers,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                max_msg_size=_MAX_FRAME_BYTES,
            )
        loop = RunnerLoop(socket, start)
        try:
            await loop.begin()
        except BaseException:
            await loop.close()
            raise
        return loop


def _accepted(draft: Sequence[int], choices: Choices, emitted: tuple[int, ...]) -> int:
    """How many drafts are among `emitted`, which has to follow from the choices.

    A choice was made after the drafts before it, so it counts only if the target chose those as well.
    """
    follows = (
        emitted
        and emitted == choices.ids[: len(emitted)]
        and tuple(draft[: len(emitted) - 1]) == emitted[:-1]
        and not any(choices.ends[: len(emitted) - 1])
    )
    if not follows:
        raise _disagreed("emits what the target did not choose")
    return sum(proposed == chosen for proposed, chosen in zip(draft, emitted, strict=False))


def _lost(what: str) -> GoPlain:
    return GoPlain(WhyPlain.RUNNER_LOST, f"the draft runner was lost: {what}")


def _disagreed(what: str) -> GoPlain:
    return GoPlain(WhyPlain.RUNNER_DISAGREED, f"the draft runner {what}")
