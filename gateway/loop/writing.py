"""Joins an answer's tokens and its text: tokens are generated ahead, and text follows as it is spelled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.loop.counts import LoopCounts
from gateway.loop.generation import Emission, Generation
from gateway.loop.shape import End
from gateway.loop.text import AnswerText


@dataclass(frozen=True, slots=True)
class Piece:
    """What is added to an answer at once.

    Attributes:
        text: May be empty.
        end: How the answer ended, with its last piece; None before.
    """

    text: str = field(repr=False)
    end: End | None


class Writing:
    """One answer being written. Starts at once; whoever made it closes it.

    Args:
        generation: Makes the tokens.
        begin_text: Makes the text that they are added to; called beside the first pass.
        counts: Counts what belongs to the answer.
    """

    def __init__(
        self,
        *,
        generation: Generation,
        begin_text: Callable[[], Awaitable[AnswerText]],
        counts: LoopCounts,
    ) -> None:
        self.counts = counts
        self._generation = generation
        self._begin_text = begin_text
        self._text: AnswerText | None = None
        self._uncounted: deque[Emission] = deque()
        self._arrived: asyncio.Queue[Emission | Exception] = asyncio.Queue()
        self._failure: Exception | None = None
        self._generating = asyncio.create_task(self._generate())

    async def next(self) -> Piece:
        """The next piece; called until there is one with an end.

        Raises:
            GoPlain: The loop failed before the first token.
            BackendError: The target failed.
        """
        if self._text is None:
            self._text = await self._begin_text()
        emissions = await self._waiting()
        self._uncounted += emissions
        shown = await self._text.push([token for emission in emissions for token in emission.tokens])
        finished = emissions[-1].finished
        if finished:
            shown += await self._text.finish()
        if self._text.matched is not None:
            finished = "stop"
            self.close()  # whatever the target is at, it is not the answer's
        self._count(self._text, ended=finished is not None)
        return Piece(shown, self._end(finished, self._text.matched) if finished else None)

    def close(self) -> None:
        """Stop generating, and let go of every connection."""
        self._generating.cancel()

    async def _generate(self) -> None:
        try:
            await self._generation.run(self._arrived.put_nowait)
        except Exception as error:  # noqa: BLE001 - raised where the answer is written
            self._arrived.put_nowait(error)

    async def _waiting(self) -> list[Emission]:
        """Everything that has been generated since the last call; waits for something."""
        emissions: list[Emission] = []
        while not emissions or not self._arrived.empty():
            item = self._failure or await self._arrived.get()
            if isinstance(item, Emission):
                emissions.append(item)
            elif emissions:
                self._failure = item  # what came before it is still written
                break
            else:
                raise item
        return emissions

    def _count(self, text: AnswerText, *, ended: bool) -> None:
        """Count the passes whose tokens the text accounts for; at the end, what of the last one belongs."""
        while self._uncounted:
            emission = self._uncounted[0]
            kept = min(len(emission.tokens), text.tokens - self.counts.tokens)
            if kept < len(emission.tokens) and not ended:
                return
            if kept or not emission.tokens:
                self.counts.add(emission, kept)
            self._uncounted.popleft()

    def _end(self, reason: str, stop: str | None) -> End:
        return End(
            reason=reason,
            stop=stop,
            prompt_tokens=self.counts.prompt_tokens,
            completion_tokens=self.counts.tokens,
        )
