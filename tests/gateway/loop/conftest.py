"""A data plane whose every decision is a loop, between a byte target and a scripted draft runner."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.policy.model import Action, Decision, Mode
from gateway.proxy import dispatch, stages
from gateway.telemetry.record import AccessRecord, StageRecord
from tests.fakes.byte_target import ByteTarget, ids_of
from tests.fakes.loop_runner import LoopRunner
from tests.fakes.raw_http import Answer, ask, post
from tests.fakes.served import served
from tests.gateway.proxy.harness import Gateway, backend_at

K = 5


@pytest.fixture(scope="session")
def byte_target() -> Iterator[tuple[ByteTarget, str]]:
    target = ByteTarget()
    with served(target.app) as url:
        yield target, url


@pytest.fixture
def target(byte_target: tuple[ByteTarget, str]) -> ByteTarget:
    byte_target[0].reset(ids_of("one two one two"))
    return byte_target[0]


@pytest.fixture(scope="session")
def loop_runner() -> Iterator[LoopRunner]:
    with LoopRunner() as runner:
        yield runner


@pytest.fixture
def runner(loop_runner: LoopRunner) -> LoopRunner:
    loop_runner.reset(lambda answer, k: ())
    return loop_runner


@pytest.fixture(params=["fanout", "scored"])
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch, strategy: str) -> Decision:
    """Every request is speculated in a loop."""
    decision = Decision(
        mode=Mode.PROD,
        action=Action.SPECULATE,
        rule="all",
        drafter="ngram",
        executor="gateway_loop",
        strategy=strategy,
        k=K,
    )
    for module in (dispatch, stages):
        monkeypatch.setattr(module, "decide", lambda *_: decision)
    return decision


@dataclass(frozen=True)
class Said:
    """What an answer says, streamed or not; all that must equal plain decoding's."""

    status: int
    text: str
    finish_reason: str | None
    stop_reason: str | None
    usage: Any
    ended_well: bool


@dataclass
class Loop:
    """The gateway, and the target asked past it."""

    gateway: Gateway
    target_port: int

    def ask(self, **fields: Any) -> Answer:
        return ask(self.gateway.port, _post(fields))

    def both(self, **fields: Any) -> tuple[Said, Said]:
        """What the gateway says, and what the target itself does."""
        through, plain = self.both_raw(**fields)
        return said(through), said(plain)

    def both_raw(self, **fields: Any) -> tuple[Answer, Answer]:
        """The two answers."""
        return self.ask(**fields), ask(self.target_port, _post(fields))

    def records(self) -> tuple[AccessRecord, StageRecord]:
        """Those of the next request."""
        access = self.gateway.records.next_access()
        return access, self.gateway.records.stages.pop()


@pytest.fixture
def loop(
    byte_target: tuple[ByteTarget, str], target: ByteTarget, runner: LoopRunner, decided: Decision
) -> Iterator[Loop]:
    url = byte_target[1]
    with Gateway([backend_at(url, findings={})], runners=[runner]) as gateway:
        yield Loop(gateway, int(url.rpartition(":")[2]))


def right_by(answer: Sequence[int], lengths: Sequence[int], wrong: int = 99) -> Any:
    """Drafts that are right for so many tokens in turn, and then wrong."""
    turns = iter(range(10**6))

    def propose(so_far: Sequence[int], k: int) -> list[int]:
        right = lengths[next(turns) % len(lengths)]
        known = list(answer[len(so_far) : len(so_far) + right])
        return [*known, *[wrong] * k][:k]

    return propose


def said(answer: Answer) -> Said:
    """Read an answer of either shape."""
    if (answer.header("content-type") or "").startswith("text/event-stream"):
        return _streamed(answer)
    document = json.loads(answer.body)
    choice = (document.get("choices") or [{}])[0]
    text = choice.get("text", choice.get("message", {}).get("content"))
    return Said(
        answer.status, text or "", choice.get("finish_reason"), choice.get("stop_reason"),
        document.get("usage"), answer.whole,
    )  # fmt: skip


def events(answer: Answer) -> list[Any]:
    """The documents of a stream, without its [DONE]."""
    data = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
    return [json.loads(text) for text in data if text != "[DONE]"]


def _streamed(answer: Answer) -> Said:
    documents = events(answer)
    choices = [document["choices"][0] for document in documents if document.get("choices")]
    text = "".join(choice.get("text", choice.get("delta", {}).get("content", "")) for choice in choices)
    usage = next((document["usage"] for document in documents if "usage" in document), None)
    whole = answer.whole and answer.body.endswith(b"data: [DONE]\n\n")
    last = choices[-1] if choices else {}
    return Said(answer.status, text, last.get("finish_reason"), last.get("stop_reason"), usage, whole)


def _post(fields: dict[str, Any]) -> bytes:
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    prompt = {} if "prompt" in fields else {"messages": [{"role": "user", "content": "Write."}]}
    body = {"model": "m1", "max_tokens": 40, "temperature": 0, **prompt, **fields}
    return post(json.dumps(body).encode(), path=path)
