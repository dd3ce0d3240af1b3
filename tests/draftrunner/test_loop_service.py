"""`/v1/loop` over a real socket, as a gateway uses it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import aiohttp
import httpx
import pytest

from draftrunner.drafters import Drafters, make_drafters
from draftrunner.loop_service import MAX_CONTEXT
from draftrunner.model import MAX_LOOKAHEAD, NOBODY, DraftSession, Origin
from draftrunner.service import create_app
from tests.fakes.served import served
from tests.fakes.target import ScriptedSession
from tests.fakes.waiting import until

TOKEN = "open-sesame"
PROMPT = [5, 6, 7, 8, 9, 5, 6]
PATIENCE_S = 60

Frame = dict[str, Any]


class RecordingDrafter:
    """Drafts `drafts[n]` after n tokens of an answer, and keeps what it is told.

    Attributes:
        opened: The origin of each session.
        closed: How many sessions were closed.
        learnt: Every answer learnt from, with its origin.
    """

    name = "toy"
    consistent = False

    def __init__(self, drafts: dict[int, list[int]] | None = None) -> None:
        self.opened: list[Origin] = []
        self.closed = 0
        self.learnt: list[tuple[list[int], Origin]] = []
        self._drafts = drafts or {}

    def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
        self.opened.append(origin)
        return _RecordedSession(self, prompt, self._drafts)

    def learn(self, answer: Sequence[int], origin: Origin) -> None:
        self.learnt.append((list(answer), origin))


class _RecordedSession(ScriptedSession):
    def __init__(
        self, drafter: RecordingDrafter, prompt: Sequence[int], drafts: dict[int, list[int]]
    ) -> None:
        super().__init__(prompt, drafts)
        self._drafter = drafter

    def close(self) -> None:
        self._drafter.closed += 1


class Connection:
    """One loop's connection, frame by frame."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, frame: object) -> None:
        await self.socket.send_str(frame if isinstance(frame, str) else json.dumps(frame))

    async def hear(self) -> Frame:
        message = await self.socket.receive(PATIENCE_S)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        frame: Frame = json.loads(message.data)
        return frame

    async def choose(self, *choices: int, end: int | None = None) -> Frame:
        await self.say({"choices": choices, "ends": [token == end for token in choices]})
        return await self.hear()

    async def refusal(self, code: int) -> str:
        """The reason of the close that comes next."""
        message = await self.socket.receive(PATIENCE_S)
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        assert message.data == code
        return str(message.extra)


@contextlib.asynccontextmanager
async def connected(url: str, authorization: str = f"Bearer {TOKEN}") -> AsyncIterator[Connection]:
    headers = {"authorization": authorization} if authorization else {}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/v1/loop", headers=headers) as socket,
    ):
        yield Connection(socket)


def first_frame(**changes: Any) -> Frame:
    asked = {
        "prompt_ids": PROMPT,
        "drafter": "toy",
        "profile": "embedded",
        "k": 3,
        "tenant": "team-a",
        "max_tokens": 10,
        "plain_seconds_per_token": None,
    }
    return {**asked, **changes}


def app_with(drafter: Any, **options: Any) -> Any:
    drafters: Drafters = {"toy": {"embedded": drafter}}
    return create_app(token=TOKEN, version="0", drafters=drafters, **options)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A runner whose drafter has nothing to propose."""
    with served(app_with(RecordingDrafter())) as address:
        yield address


# --- an answer -------------------------------------------------------------------------------


async def test_an_answer_frame_by_frame() -> None:
    drafter = RecordingDrafter({1: [21, 22, 23], 4: [1, 2, 3], 5: [25]})
    with served(app_with(drafter)) as url:
        async with connected(url) as loop:
            await loop.say(first_frame())
            assert await loop.hear() == {"draft": []}
            assert await loop.choose(20) == {
                "emitted": [20],
                "drafted": 0,
                "accepted": 0,
                "draft": [21, 22, 23],
            }
            assert await loop.choose(21, 22, 30, 31) == {
                "emitted": [21, 22, 30],
                "drafted": 3,
                "accepted": 2,
                "draft": [1, 2, 3],
            }
            assert await loop.choose(24, 9, 9, 9) == {
                "emitted": [24],
                "drafted": 3,
                "accepted": 0,
                "draft": [25],
            }
            assert await loop.choose(25, 99, end=99) == {"emitted": [25, 99], "drafted": 1, "accepted": 1}
            await loop.say({"answer_tokens": 7})
            await loop.refusal(1000)
    origin = Origin(tenant="team-a")
    assert (drafter.opened, drafter.closed) == ([origin], 1)
    assert drafter.learnt == [([20, 21, 22, 30, 24, 25, 99], origin)]


async def test_the_runners_own_drafters_can_be_used() -> None:
    with served(create_app(token=TOKEN, version="0", drafters=make_drafters())) as url:
        async with connected(url) as loop:
            await loop.say(first_frame(drafter="ngram"))
            await loop.hear()
            assert (await loop.choose(7))["draft"] == [8, 9, 5]


async def test_a_drafter_that_learns_drafts_from_answers_of_its_own_tenant_alone() -> None:
    answer = [20, 21, 22]
    with served(create_app(token=TOKEN, version="0", drafters=make_drafters())) as url:
        for tenant, drafts_from_it in (("team-a", False), ("team-b", False), ("team-a", True)):
            async with connected(url) as loop:
                await loop.say(first_frame(drafter="suffix", tenant=tenant, max_tokens=len(answer)))
                await loop.hear()
                frame = await loop.choose(answer[0])
                assert frame["draft"] == answer[1:2] * drafts_from_it
                if tenant == "team-a" and not drafts_from_it:
                    await loop.choose(answer[1])
                    await loop.choose(answer[2])
                    await loop.say({"answer_tokens": len(answer)})
                    await loop.refusal(1000)


async def test_an_answer_of_one_token_ends_with_its_first() -> None:
    drafter = RecordingDrafter({1: [21]})
    with served(app_with(drafter)) as url:
        async with connected(url) as loop:
            await loop.say(first_frame(max_tokens=1))
            await loop.hear()
            assert await loop.choose(20) == {"emitted": [20], "drafted": 0, "accepted": 0}


async def test_only_what_the_gateway_calls_the_answer_is_learnt_from() -> None:
    """A stop string may lie before the last token emitted, and is seen by the gateway alone."""
    drafter = RecordingDrafter()
    with served(app_with(drafter)) as url:
        async with connected(url) as loop:
            await loop.say(first_frame())
            await loop.hear()
            await loop.choose(20)
            await loop.choose(21)
            await loop.say({"answer_tokens": 1})
            await loop.refusal(1000)
    assert (drafter.learnt, drafter.closed) == ([([20], Origin(tenant="team-a"))], 1)


@pytest.mark.parametrize("choices", range(3))
async def test_a_gateway_that_leaves_ends_the_session_and_teaches_nothing(choices: int) -> None:
    drafter = RecordingDrafter()
    with served(app_with(drafter, loops_at_once=1)) as url:
        async with connected(url) as loop:
            await loop.say(first_frame())
            await loop.hear()
            for _ in range(choices):
                await loop.choose(20)
        await until(lambda: drafter.closed == 1)
        async with connected(url) as loop:
            await loop.say(first_frame())
            assert await loop.hear() == {"draft": []}, "the place is free again"
    assert drafter.learnt == []


async def test_an_answer_slower_than_plain_is_given_back_with_what_it_emitted() -> None:
    drafter = RecordingDrafter()
    with served(app_with(drafter)) as url:
        async with connected(url) as loop:
            await loop.say(first_frame(max_tokens=20_000, plain_seconds_per_token=1e-9))
            frame = await loop.hear()
            passes = 0
            while "draft" in frame:
                frame = await loop.choose(20)
                passes += 1
            assert frame == {"emitted": [20], "drafted": 0, "accepted": 0, "stop": "slower_than_plain"}
            await loop.say({"answer_tokens": 20_000})
            await loop.refusal(1000)
    ((learnt, _),) = drafter.learnt
    assert learnt == [20] * passes, "what was emitted elsewhere is not known here"


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", ["", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
async def test_a_loop_needs_the_token(url: str, authorization: str) -> None:
    async with connected(url, authorization) as loop:
        reason = await loop.refusal(4401)
        assert "Authorization: Bearer" in reason
        assert TOKEN not in reason


WRONG_FRAMES = {
    "no JSON": ("{", "body: Invalid JSON"),
    "no object": ("[]", "body: Input should be an object"),
    "nothing in it": ("{}", "prompt_ids: Field required"),
    "an unknown drafter": (first_frame(drafter="egale"), "drafter: 'egale' is not known. Allowed: toy."),
    "an unknown profile": (first_frame(profile="x"), "profile: 'x' is not known. Allowed: "),
    "no prompt": (first_frame(prompt_ids=[]), "prompt_ids: List should have at least 1 item"),
    "a negative id": (first_frame(prompt_ids=[-1]), "prompt_ids.0: Input should be greater than"),
    "lookahead 0": (first_frame(k=0), "k: Input should be greater than or equal to 1"),
    "a lookahead too long": (
        first_frame(k=MAX_LOOKAHEAD + 1),
        f"k: Input should be less than or equal to {MAX_LOOKAHEAD}",
    ),
    "no tokens": (first_frame(max_tokens=0), "max_tokens: Input should be greater than"),
    "too many tokens": (first_frame(max_tokens=MAX_CONTEXT), f"One loop takes {MAX_CONTEXT} at most."),
    "a tenant too long": (first_frame(tenant="x" * 257), "tenant: String should have at most 256"),
    "no time": (first_frame(plain_seconds_per_token=0), "plain_seconds_per_token: Input should be greater"),
    "an unknown field": (first_frame(ks=[1]), "ks: Extra inputs are not permitted"),
}


@pytest.mark.parametrize(("frame", "message"), WRONG_FRAMES.values(), ids=WRONG_FRAMES)
async def test_a_wrong_first_frame_is_refused_with_what_is_allowed(
    url: str, frame: object, message: str
) -> None:
    async with connected(url) as loop:
        await loop.say(frame)
        assert message in await loop.refusal(4400)


WRONG_CHOICES = {
    "too few": ({"choices": [], "ends": []}, "choices holds 0 and ends 0 entries for a draft of 0. Send 1"),
    "too many": ({"choices": [1, 2], "ends": [False, False]}, "choices holds 2"),
    "ends missing": ({"choices": [1], "ends": []}, "ends 0 entries"),
    "no id": ({"choices": [-1], "ends": [False]}, "choices.0: Input should be greater than"),
    "no flag": ({"choices": [1], "ends": [0]}, "ends.0: Input should be a valid boolean"),
    "neither": ({"draft": []}, "choices: Field required"),
    "no count": ({"answer_tokens": -1}, "answer_tokens: "),
}


@pytest.mark.parametrize(("frame", "message"), WRONG_CHOICES.values(), ids=WRONG_CHOICES)
async def test_choices_that_do_not_fit_the_draft_are_refused(frame: Frame, message: str) -> None:
    drafter = RecordingDrafter()
    with served(app_with(drafter)) as url:
        async with connected(url) as loop:
            await loop.say(first_frame())
            await loop.hear()
            await loop.say(frame)
            assert message in await loop.refusal(4400)
    assert (drafter.closed, drafter.learnt) == (1, [])


async def test_choices_after_the_end_are_refused(url: str) -> None:
    async with connected(url) as loop:
        await loop.say(first_frame(max_tokens=1))
        await loop.hear()
        await loop.choose(20)
        await loop.say({"choices": [1], "ends": [False]})
        assert "nothing is left to score" in await loop.refusal(4400)


async def test_a_binary_frame_is_refused(url: str) -> None:
    async with connected(url) as loop:
        await loop.socket.send_bytes(json.dumps(first_frame()).encode())
        assert "binary" in await loop.refusal(4400)


async def test_a_reason_fits_into_its_frame(url: str) -> None:
    async with connected(url) as loop:
        await loop.say(first_frame(**{"é" * 200: 1}))
        assert len((await loop.refusal(4400)).encode()) <= 123


@pytest.mark.parametrize("frames", range(3))
async def test_a_gateway_that_says_nothing_is_given_up(frames: int) -> None:
    drafter = RecordingDrafter()
    with served(app_with(drafter, loop_idle_s=0.2)) as url:
        async with connected(url) as loop:
            if frames > 0:
                await loop.say(first_frame())
                await loop.hear()
            if frames > 1:
                await loop.choose(20)
            assert "said nothing for 0.2 s" in await loop.refusal(4400)
    assert drafter.closed == len(drafter.opened) == min(frames, 1)


async def test_more_loops_than_the_limit_are_refused_and_replays_are_not() -> None:
    with served(app_with(RecordingDrafter(), loops_at_once=2)) as url:
        async with connected(url) as first, connected(url) as second, connected(url) as third:
            for loop in (first, second):
                await loop.say(first_frame())
                await loop.hear()
            await third.say(first_frame())
            assert "drafts for 2 answers at once" in await third.refusal(4503)
            replay = {
                "prompt_ids": [1],
                "answer_ids": [2, 3],
                "drafter": "toy",
                "profile": "embedded",
                "ks": [1],
            }
            async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
                reply = await client.post(
                    f"{url}/v1/replay", json=replay, headers={"authorization": f"Bearer {TOKEN}"}
                )
            assert reply.status_code == 200
            assert (await first.choose(20))["emitted"] == [20]


# --- bugs ------------------------------------------------------------------------------------


async def test_a_drafter_that_fails_takes_its_own_answer_with_it_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(RecordingDrafter):
        def open(self, prompt: Sequence[int], origin: Origin = NOBODY) -> DraftSession:
            session = super().open(prompt, origin)
            if len(self.opened) == 1:
                session.propose = broken  # type: ignore[method-assign]
            return session

    def broken(k: int) -> list[int]:
        raise ZeroDivisionError("the secret of the machine room")

    drafter = Failing()
    with served(app_with(drafter)) as url:
        async with connected(url) as unlucky, connected(url) as lucky:
            for loop in (unlucky, lucky):
                await loop.say(first_frame())
                await loop.hear()
            await unlucky.say({"choices": [20], "ends": [False]})
            assert "secret" not in await unlucky.refusal(1011)
            assert (await lucky.choose(20))["draft"] == []
    assert "the secret of the machine room" in caplog.text, "the log has it"
    assert drafter.closed == 2


async def test_a_runner_that_stops_ends_its_loops() -> None:
    drafter = RecordingDrafter()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(app_with(drafter)))
        async with connected(url) as loop:
            await loop.say(first_frame())
            await loop.hear()
            stopping = threading.Thread(target=stack.close)
            stopping.start()
            await loop.refusal(1012)
            await until(lambda: not stopping.is_alive())
    assert (drafter.closed, drafter.learnt) == (1, [])
