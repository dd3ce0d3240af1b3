"""`/v1/loop`: drafts for answers that are being generated; the gateway at the other end calls the target.

One connection is one answer, and its frames are JSON text. The gateway says what is drafted for, then the
two take turns: the runner tells what the last pass emitted and what to score next, the gateway tells what
the target chose. A refusal closes the connection with 4000 plus the HTTP status that it would have had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field, TypeAdapter
from starlette.websockets import WebSocket, WebSocketDisconnect

from draftrunner.drafters import Drafters
from draftrunner.model import MAX_LOOKAHEAD, Origin, Step
from draftrunner.profiles import PROFILES
from draftrunner.remote_loop import AnswerOver, Choices, Task, draft_answer
from draftrunner.requests import (
    InvalidRequest,
    Lookahead,
    ServiceError,
    Slots,
    Tenant,
    TokenId,
    check_bearer,
    check_known,
    valid,
)

LOOPS_AT_ONCE = 32
"""A loop holds a thread, and memory in proportion to its context; more at once are refused."""

MAX_CONTEXT = 32_768
"""Most tokens that prompt and answer of one loop may have together."""

IDLE_S = 60.0
"""How long a gateway may say nothing when it is its turn."""

SLOWER_THAN_PLAIN = "slower_than_plain"

_REFUSED = 4000
_FAILED = 1011
_LONGEST_REASON = 123
"""Bytes of a close frame's reason (RFC 6455, 5.5)."""

_SPARE_S = 5.0

logger = logging.getLogger(__name__)


class LoopRequest(BaseModel):
    """The gateway's first frame."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # FailFast: a frame of nothing but wrong ids must not cost an error object for each.
    prompt_ids: Annotated[list[TokenId], FailFast(), Field(min_length=1)]
    drafter: str
    profile: str
    k: Lookahead
    tenant: Tenant
    max_tokens: Annotated[int, Field(strict=True, ge=1)]
    plain_seconds_per_token: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None

    @property
    def task(self) -> Task:
        """What is drafted for."""
        return Task(
            prompt=self.prompt_ids,
            k=self.k,
            max_tokens=self.max_tokens,
            plain_seconds_per_token=self.plain_seconds_per_token,
        )


class ChoicesFrame(BaseModel):
    """The target's choices for the draft last sent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    choices: Annotated[list[TokenId], Field(max_length=MAX_LOOKAHEAD + 1)]
    ends: Annotated[list[Annotated[bool, Field(strict=True)]], Field(max_length=MAX_LOOKAHEAD + 1)]


class AnswerFrame(BaseModel):
    """The answer is over."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    answer_tokens: Annotated[int, Field(strict=True, ge=0)]


_LATER_FRAME: TypeAdapter[ChoicesFrame | AnswerFrame] = TypeAdapter(ChoicesFrame | AnswerFrame)


class LoopRoute:
    """Serves `/v1/loop`.

    Args:
        token: What gateways must send as bearer token.
        drafters: What can be drafted with.
        loops_at_once: Further loops are refused.
        idle_s: Seconds after which a silent gateway is given up.
    """

    def __init__(self, *, token: str, drafters: Drafters, loops_at_once: int, idle_s: float) -> None:
        self._token = token
        self._drafters = drafters
        self._idle_s = idle_s
        self._slots = Slots("drafts for", loops_at_once)
        # Loops block while the target works, which must not keep the threads that replays need.
        self._threads = ThreadPoolExecutor(loops_at_once, thread_name_prefix="loop")

    async def serve(self, socket: WebSocket) -> None:
        """Draft for one answer, or close the connection and say why not."""
        await socket.accept()
        try:
            check_bearer(socket, self._token)
            asked = self._parsed(await _heard(socket, self._idle_s))
            with self._slots.taken():
                await self._run(asked, socket)
        except WebSocketDisconnect:
            return  # the gateway needs no loop any more
        except ServiceError as refusal:
            await _close(socket, _REFUSED + refusal.status, str(refusal))
        except Exception:
            logger.exception("Drafting for an answer failed")
            await _close(socket, _FAILED, "The draft runner failed. Its log has the details.")
        else:
            await _close(socket)

    def _parsed(self, frame: str) -> LoopRequest:
        asked = valid(LoopRequest.model_validate_json, frame)
        check_known("drafter", asked.drafter, self._drafters)
        check_known("profile", asked.profile, PROFILES)
        if len(asked.prompt_ids) + asked.max_tokens > MAX_CONTEXT:
            raise InvalidRequest(
                f"prompt_ids and max_tokens make {len(asked.prompt_ids) + asked.max_tokens} tokens. "
                f"One loop takes {MAX_CONTEXT} at most."
            )
        return asked

    async def _run(self, asked: LoopRequest, socket: WebSocket) -> None:
        loop = asyncio.get_running_loop()
        line = _SocketLine(socket, loop, self._idle_s)
        await loop.run_in_executor(self._threads, self._draft, asked, line)

    def _draft(self, asked: LoopRequest, line: _SocketLine) -> None:
        """Draft until the answer is over; what the gateway then calls its answer may be learnt from."""
        drafter = self._drafters[asked.drafter][asked.profile]
        origin = Origin(tenant=asked.tenant)
        session = drafter.open(asked.prompt_ids, origin)
        try:
            answer = draft_answer(asked.task, session, line, time.monotonic)
        finally:
            session.close()
        drafter.learn(answer, origin)


class _SocketLine:
    """A connection as the thread of its loop sees it: blocking, and with frames for words."""

    def __init__(self, socket: WebSocket, loop: asyncio.AbstractEventLoop, idle_s: float) -> None:
        self._socket = socket
        self._loop = loop
        self._idle_s = idle_s

    def verify(self, done: Step | None, draft: Sequence[int]) -> Choices:
        frame = self._exchange({**_emission(done), "draft": draft})
        if isinstance(frame, AnswerFrame):
            raise AnswerOver(frame.answer_tokens)
        if not len(frame.choices) == len(frame.ends) == len(draft) + 1:
            raise InvalidRequest(
                f"choices holds {len(frame.choices)} and ends {len(frame.ends)} entries for a draft of "
                f"{len(draft)}. Send {len(draft) + 1} of each."
            )
        return Choices(frame.choices, frame.ends)

    def finish(self, done: Step, *, slower_than_plain: bool) -> int:
        stop = {"stop": SLOWER_THAN_PLAIN} if slower_than_plain else {}
        frame = self._exchange({**_emission(done), **stop})
        if isinstance(frame, ChoicesFrame):
            raise InvalidRequest("choices: nothing is left to score. Send answer_tokens, or close.")
        return frame.answer_tokens

    def _exchange(self, told: dict[str, Any]) -> ChoicesFrame | AnswerFrame:
        exchange = asyncio.run_coroutine_threadsafe(self._told_and_heard(told), self._loop)
        # The event loop keeps the time. Only if it stopped in this very moment would nobody ever answer.
        return _later_frame(exchange.result(timeout=self._idle_s + _SPARE_S))

    async def _told_and_heard(self, told: dict[str, Any]) -> str:
        await self._socket.send_text(orjson.dumps(told).decode())
        return await _heard(self._socket, self._idle_s)


def _emission(done: Step | None) -> dict[str, Any]:
    """What a pass did, as frames say it; nothing before the first."""
    if done is None:
        return {}
    return {"emitted": done.tokens, "drafted": done.drafted, "accepted": done.accepted}


def _later_frame(text: str) -> ChoicesFrame | AnswerFrame:
    return valid(_LATER_FRAME.validate_json, text)


async def _heard(socket: WebSocket, idle_s: float) -> str:
    """The next frame.

    Raises:
        InvalidRequest: It is binary, or did not come in time.
        WebSocketDisconnect: There is none.
    """
    try:
        async with asyncio.timeout(idle_s):
            message = await socket.receive()
    except TimeoutError:
        raise InvalidRequest(f"The gateway said nothing for {idle_s:g} s. Open another loop.") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    if (text := message.get("text")) is None:
        raise InvalidRequest("frame: Frames are JSON text, and this one is binary.")
    return str(text)


async def _close(socket: WebSocket, code: int = 1000, reason: str = "") -> None:
    """Close the connection; one that the gateway has closed already stays closed."""
    with contextlib.suppress(WebSocketDisconnect):
        await socket.close(code, reason.encode()[:_LONGEST_REASON].decode(errors="ignore"))
