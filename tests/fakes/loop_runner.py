"""A draft runner's `/v1/loop` with a script: it drafts as told, and fails at any frame in any way.

A raw socket under wsproto, so that it can hang, be reset, and lie.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, RejectConnection, Request, TextMessage

from draftrunner.verify import verify
from tests.fakes.upstream import PATIENCE_S

Document = dict[str, Any]
Propose = Callable[[Sequence[int], int], Sequence[int]]
"""Answer so far and K to a draft."""


@dataclass(frozen=True)
class Fault:
    """What a runner does instead of its work.

    Attributes:
        after: Frames, heard and told, that go well before it.
        how: A key of FAULTS.
    """

    after: int
    how: str


FAULTS = ("close", "reset", "hang", "garbage", "wrong tokens", "wrong counts", "too long a draft", "slower")
"""Those that speak (from `garbage` on) do so at the first frame that they can spoil."""


@dataclass
class Conversation:
    """One loop, as the runner saw it.

    Attributes:
        start: The first frame.
        frames: Heard and told so far.
        answer: All that was emitted.
        answer_tokens: What the gateway said at the end; None if it said nothing.
        over: Set once the connection has ended.
    """

    start: Document = field(default_factory=dict)
    frames: int = 0
    answer: list[int] = field(default_factory=list)
    answer_tokens: int | None = None
    over: threading.Event = field(default_factory=threading.Event)


class LoopRunner:
    """The runner; use as a context manager.

    Attributes:
        drafters: What it has announced.
        propose: Drafts.
        fault: What goes wrong; None for nothing.
        says: Told each frame before it is sent; what it returns is sent instead.
        rejects: Status that the handshake is refused with; None takes everybody.
        conversations: Every loop so far.
        tokens_sent: Authorization headers so far.
    """

    drafters = ("ngram", "suffix")

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.reset(lambda answer, k: ())

    def reset(self, propose: Propose, fault: Fault | None = None, rejects: int | None = None) -> None:
        """Draft by `propose` from now on, and fail by `fault`."""
        self.propose, self.fault, self.rejects = propose, fault, rejects
        self.says: Callable[[Document], object] = lambda frame: frame
        self.conversations: list[Conversation] = []
        self.authorizations: list[str] = []

    def __enter__(self) -> LoopRunner:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        conversation = Conversation()
        line = _Line(connection, conversation, self.fault, self.says)
        with contextlib.suppress(OSError, _Over), connection:
            try:
                if line.handshake(self):
                    self.conversations.append(conversation)
                    self._draft(line, conversation)
            finally:
                conversation.over.set()

    def _draft(self, line: _Line, conversation: Conversation) -> None:
        conversation.start = line.hear()
        left, k = conversation.start["max_tokens"], conversation.start["k"]
        draft: list[int] = []
        told: Document = {}
        while True:
            line.tell({**told, "draft": draft})
            heard = line.hear()
            if "answer_tokens" in heard:
                conversation.answer_tokens = heard["answer_tokens"]
                return
            verdict = verify(draft, heard["choices"].__getitem__)
            emitted = list(verdict.tokens)
            if True in heard["ends"][: len(emitted)]:
                emitted = emitted[: heard["ends"].index(True) + 1]
            ended = heard["ends"][len(emitted) - 1]
            conversation.answer += emitted
            left -= len(emitted)
            told = {
                "emitted": emitted,
                "drafted": len(draft),
                "accepted": min(verdict.accepted, len(emitted)),
            }
            if ended or not left:
                line.tell(told)
                conversation.answer_tokens = line.hear().get("answer_tokens")
                return
            draft = list(self.propose(conversation.answer, min(k, left - 1)))


class _Over(Exception):
    """The conversation has ended."""


class _Line:
    """Frames over a socket, and the fault in its place."""

    def __init__(
        self,
        connection: socket.socket,
        conversation: Conversation,
        fault: Fault | None,
        says: Callable[[Document], object],
    ) -> None:
        self._says = says
        self._connection = connection
        self._conversation = conversation
        self._fault = fault
        self._protocol = WSConnection(ConnectionType.SERVER)

    def handshake(self, runner: LoopRunner) -> bool:
        request = self._event(Request)
        runner.authorizations.append(dict(request.extra_headers).get(b"authorization", b"").decode())
        if runner.rejects is not None:
            self._send(RejectConnection(status_code=runner.rejects))
            return False
        self._send(AcceptConnection())
        return True

    def hear(self) -> Document:
        self._fail_if_due()
        heard: Document = json.loads(self._event(TextMessage).data)
        self._conversation.frames += 1
        return heard

    def tell(self, frame: Document) -> None:
        self._fail_if_due()
        spoilt = self._spoilt(frame)
        self._send(TextMessage(spoilt if isinstance(spoilt, str) else json.dumps(spoilt)))
        self._conversation.frames += 1

    def _fail_if_due(self) -> None:
        if self._fault is None or self._conversation.frames < self._fault.after:
            return
        if self._fault.how == "close":
            self._send(CloseConnection(code=1011, reason="failed"))
        elif self._fault.how == "reset":
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self._fault.how == "hang":
            self._event(CloseConnection)
        else:
            return
        raise _Over

    def _spoilt(self, frame: Document) -> object:
        if self._fault is None or self._conversation.frames < self._fault.after:
            return self._says(frame)
        match self._fault.how:
            case "garbage":
                return "[]"
            case "wrong tokens" if "emitted" in frame:
                return frame | {"emitted": [*frame["emitted"][:-1], frame["emitted"][-1] + 1]}
            case "wrong counts" if "emitted" in frame:
                return frame | {"drafted": frame["drafted"] + 1}
            case "too long a draft" if "draft" in frame:
                return frame | {"draft": [1] * 17}
            case "slower" if frame.get("emitted") and "draft" in frame:
                return {**{n: v for n, v in frame.items() if n != "draft"}, "stop": "slower_than_plain"}
        return frame

    def _event(self, kind: type[Any]) -> Any:
        """The next event of a kind; whatever else comes is not waited for."""
        while True:
            for event in self._protocol.events():
                if isinstance(event, kind):
                    return event
                if isinstance(event, CloseConnection):
                    self._send(event.response())
                    raise _Over
            data = self._connection.recv(65536)
            self._protocol.receive_data(data or None)
            if not data:
                raise _Over

    def _send(self, event: Any) -> None:
        self._connection.sendall(self._protocol.send(event))
