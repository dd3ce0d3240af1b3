from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.loop_runner import FAULTS, Fault, LoopRunner

START = {"max_tokens": 4, "k": 2}


@pytest.fixture(scope="module")
def running() -> Iterator[LoopRunner]:
    with LoopRunner() as runner:
        yield runner


@pytest.fixture
def runner(running: LoopRunner) -> LoopRunner:
    running.reset(lambda answer, k: [7, 8][:k])
    return running


async def talk(runner: LoopRunner, *frames: dict[str, Any]) -> list[Any]:
    """What the runner says to each frame; the type of the message where it is no text."""
    said: list[Any] = []
    async with aiohttp.ClientSession() as session:
        headers = {"authorization": "Bearer t"}
        async with session.ws_connect(f"{runner.url}/v1/loop", headers=headers) as socket:
            for frame in frames:
                try:
                    await socket.send_str(json.dumps(frame))
                except ConnectionError:
                    return [*said, "gone"]
                message = await socket.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:
                    return [*said, "gone"]
                said.append(json.loads(message.data))
    return said


FRAMES = (
    START,
    {"choices": [6], "ends": [False]},
    {"choices": [7, 5, 9], "ends": [False, False, False]},
    {"choices": [1], "ends": [False]},
)


async def test_it_drafts_verifies_and_counts(runner: LoopRunner) -> None:
    first, prefilled, stepped, last = await talk(runner, *FRAMES)
    assert first == {"draft": []}
    assert prefilled == {"emitted": [6], "drafted": 0, "accepted": 0, "draft": [7, 8]}
    assert stepped == {"emitted": [7, 5], "drafted": 2, "accepted": 1, "draft": []}
    assert last == {"emitted": [1], "drafted": 0, "accepted": 0}
    (conversation,) = runner.conversations
    assert conversation.over.wait(timeout=10)
    assert (conversation.start, conversation.answer) == (START, [6, 7, 5, 1])
    assert runner.authorizations == ["Bearer t"]


async def test_it_ends_with_an_end(runner: LoopRunner) -> None:
    said = await talk(runner, *FRAMES[:2], {"choices": [7, 8, 9], "ends": [False, True, False]})
    assert said[-1] == {"emitted": [7, 8], "drafted": 2, "accepted": 2}


async def test_it_takes_note_of_the_answers_length(runner: LoopRunner) -> None:
    await talk(runner, *FRAMES, {"answer_tokens": 4})
    assert runner.conversations[0].over.wait(timeout=10)
    assert runner.conversations[0].answer_tokens == 4


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("after", range(6))
async def test_a_fault_comes_after_so_many_frames(runner: LoopRunner, how: str, after: int) -> None:
    well = await talk(runner, *FRAMES)
    runner.reset(runner.propose, Fault(after, how))
    if how == "hang":
        with pytest.raises(TimeoutError):
            await _patiently(runner)
        return
    said = await talk(runner, *FRAMES)
    assert said[: after // 2] == well[: after // 2]
    assert said != well


async def _patiently(runner: LoopRunner) -> None:
    async with asyncio.timeout(0.2):
        await talk(runner, *FRAMES)


async def test_it_can_reject(runner: LoopRunner) -> None:
    runner.reset(runner.propose, rejects=401)
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await talk(runner, START)
    assert not runner.conversations
