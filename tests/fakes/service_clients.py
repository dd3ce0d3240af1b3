"""Clients of several gateways, which meet them as they would behind a Kubernetes Service."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from tests.fakes.waiting import until

_BEFORE_ANY_BYTE = (aiohttp.ClientConnectionError, ConnectionError)


@dataclass
class ServiceClients(AbstractAsyncContextManager["ServiceClients"]):
    """Clients that send one request after the other while entered, every second one as a stream.

    Who cannot connect, or is hung up on before the first byte of an answer, turns to another gateway, as
    the next connection through a Service would. Anything else that is no whole answer is a failure.

    Attributes:
        gateways: Base URLs.
        keys: API keys, used in turn.
        clients: How many send at once.
        served: Request ids that were answered whole, and the key that each was sent with.
        cut: Request ids whose answer had begun and broke off.
        failed: What else went wrong, in words.
    """

    gateways: Sequence[str]
    keys: Sequence[str]
    clients: int = 6
    served: dict[str, str] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._stopping = False
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        self._tasks = [asyncio.create_task(self._send_on(number)) for number in range(self.clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        await self._session.close()

    async def more(self, count: int) -> None:
        """Wait until so many more requests have been served."""
        enough = len(self.served) + count
        await until(lambda: len(self.served) >= enough or bool(self.failed), at_most_s=90.0)

    async def _send_on(self, client: int) -> None:
        for turn in itertools.count():
            if self._stopping:
                return
            await self._send(f"client-{client}-{turn}", turn)

    async def _send(self, request_id: str, turn: int) -> None:
        key = self.keys[turn // 2 % len(self.keys)]
        first = turn % len(self.gateways)
        for url in (*self.gateways[first:], *self.gateways[:first]):
            begun = False
            try:
                async with self._session.post(
                    f"{url}/v1/chat/completions",
                    json=_body(stream=turn % 2 == 1),
                    headers={"authorization": f"Bearer {key}", "x-request-id": request_id},
                ) as answer:
                    begun = True
                    self._judge(request_id, key, answer.status, await answer.text(), turn % 2 == 1)
                    return
            except (*_BEFORE_ANY_BYTE, aiohttp.ClientPayloadError) as error:
                if begun:
                    self.cut.append(request_id)
                    return
                last = error
            except TimeoutError:
                self.failed.append(f"{request_id}: no answer in time")
                return
        self.failed.append(f"{request_id}: no gateway answered, at last: {last!r}")

    def _judge(self, request_id: str, key: str, status: int, text: str, stream: bool) -> None:
        whole = text.rstrip().endswith("data: [DONE]") if stream else '"usage"' in text
        if status == 200 and whole:
            self.served[request_id] = key
        else:
            self.failed.append(f"{request_id}: HTTP {status}: {text[-300:]}")


def _body(*, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": "one two three one two"}]
    return {"model": "m", "messages": messages, "max_tokens": 8, "stream": stream}
