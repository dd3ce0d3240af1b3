"""Loops as a client meets them: a data plane whose every decision is one, asked beside the target itself."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.policy.model import Action, Control, Decision, Mode
from gateway.proxy import dispatch
from gateway.telemetry.record import AccessRecord, StageRecord
from tests.fakes.raw_http import Answer, ask, post
from tests.gateway.proxy.harness import Gateway

K = 5


def decide_on_loops(monkeypatch: pytest.MonkeyPatch, strategy: str) -> Decision:
    """Make every decision a loop from now on."""
    decision = Decision(
        mode=Mode.PROD,
        action=Action.SPECULATE,
        rule="all",
        drafter="ngram",
        executor="gateway_loop",
        strategy=strategy,
        k=K,
        control=Control(fraction=0),
    )
    monkeypatch.setattr(dispatch, "decide", lambda *_, **__: decision)
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

    def through(self, **fields: Any) -> Said:
        """What the gateway says."""
        return said(self.ask(**fields))

    def plainly(self, **fields: Any) -> Said:
        """What the target itself says."""
        return said(ask(self.target_port, _post(fields)))

    def plain_ids(self, **fields: Any) -> tuple[Said, list[int]]:
        """What the target itself says, in one piece, and its token ids."""
        answer = ask(self.target_port, _post({**fields, "return_token_ids": True}))
        return said(answer), json.loads(answer.body)["choices"][0]["token_ids"]

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
        _counts(document.get("usage")), answer.whole,
    )  # fmt: skip


def events(answer: Answer) -> list[Any]:
    """The documents of a stream, without its [DONE]."""
    data = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
    return [json.loads(text) for text in data if text != "[DONE]"]


def _streamed(answer: Answer) -> Said:
    documents = events(answer)
    choices = [document["choices"][0] for document in documents if document.get("choices")]
    text = "".join(choice.get("text", choice.get("delta", {}).get("content", "")) for choice in choices)
    usage = next((_counts(document["usage"]) for document in documents if "usage" in document), None)
    whole = answer.whole and answer.body.endswith(b"data: [DONE]\n\n")
    last = choices[-1] if choices else {}
    return Said(answer.status, text, last.get("finish_reason"), last.get("stop_reason"), usage, whole)


def _post(fields: dict[str, Any]) -> bytes:
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    prompt = {} if "prompt" in fields else {"messages": [{"role": "user", "content": "Write."}]}
    body = {"model": "m1", "max_tokens": 40, "temperature": 0, **prompt, **fields}
    return post(json.dumps(body).encode(), path=path)


def outline(answer: Answer) -> list[Any]:
    """The documents without what may differ between two servers that say the same.

    Chunks that then repeat the one before are left out, as a text may come in one piece or several.
    """
    documents = events(answer) if answer.body.startswith(b"data: ") else [json.loads(answer.body)]
    texts = [json.dumps(_without_accounts(document)) for document in documents]
    without_text = [re.sub(r'"(content|text)": "[^"]*"', r'"\1": ""', text) for text in texts]
    return [json.loads(text) for text, _ in itertools.groupby(without_text)]


def _without_accounts(document: Any) -> Any:
    kept = {name: value for name, value in document.items() if name not in ("id", "created", "metrics")}
    return kept | ({"usage": _counts(document["usage"])} if "usage" in document else {})


def _counts(usage: Any) -> Any:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: usage[name] for name in names} if usage else usage
