"""From token ids to the text that a client may see, with the target's own `/detokenize`.

Text is released as an engine releases it: whole characters only, nothing that may yet become a stop string,
and nothing past one. Generated text is never turned back into ids.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.errors import BackendError

HALF = "\N{REPLACEMENT CHARACTER}"
"""What an incomplete character is spelled as."""

TAIL = 8
"""Ids before the newest that are spelled with it: how a token is spelled may depend on those before it."""

LONGEST_WINDOW = 256
"""Ids that are spelled again and again, before the older ones are left out."""

_SPECIAL = re.compile(rf"\s*[<\[][^{HALF}]+[>\]]\s*")
"""How special tokens are spelled: <s>, <|im_end|>, [INST]. No other token is ever left out of a text."""

Spell = Callable[[Sequence[int]], Awaitable[str]]
"""Token ids to text; raises BackendError."""


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    Attributes:
        ends: It ends the answer, and is not part of its text.
        silent: The engine showed no text for it alone.
    """

    id: int
    ends: bool = False
    silent: bool = False


class StopStrings:
    """Cuts a text at the first stop string, and holds back what may yet become one.

    Attributes:
        matched: The stop string that ended the text; None while none has.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def would_match(self, piece: str) -> bool:
        """Whether the text ends inside `piece`, should that follow."""
        text = self._held + piece
        return any(stop in text for stop in self._stops)

    def push(self, piece: str) -> str:
        """The text that is now safe to show."""
        text = self._held + piece
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return text[: end - len(self.matched)]
        keep = len(text) - self._possible_start(text)
        self._held = text[keep:]
        return text[:keep]

    def release(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class AnswerText:
    """The text of one answer as it grows. Made by `after`.

    Attributes:
        tokens: How many tokens the text accounts for; once `matched`, those up to the one that completed it.
    """

    def __init__(
        self, *, window: list[int], released: str, spell: Spell, stops: Sequence[str], shows_halves: bool
    ) -> None:
        # Ids that are spelled together with those to come, and their text, which has been released.
        self._window = window
        self._released = released
        self._spell = spell
        self._stops = StopStrings(stops)
        self._shows_halves = shows_halves
        # Tokens that came after, because their text ends inside a character; None for one without any text.
        self._held: list[int | None] = []
        self._hidden: dict[int, bool] = {}
        self.tokens = 0

    @classmethod
    async def after(
        cls, prompt: Sequence[int], *, spell: Spell, stops: Sequence[str], shows_halves: bool
    ) -> AnswerText:
        """An answer without a token yet.

        Args:
            prompt: Token ids; the answer's first token is spelled as what follows them.
            spell: The target's `/detokenize`.
            stops: Texts that end the answer.
            shows_halves: Whether the engine shows a character that the answer's end left incomplete.

        Raises:
            BackendError: The target could not be asked.
        """
        window = list(prompt[-TAIL:])
        released = await spell(window)
        if released.endswith(HALF):
            # The prompt ends inside a character; what completes it would not be the answer's text.
            window, released = [], ""
        return cls(window=window, released=released, spell=spell, stops=stops, shows_halves=shows_halves)

    @property
    def matched(self) -> str | None:
        """The stop string that ended the answer; None while none has."""
        return self._stops.matched

    async def push(self, tokens: Sequence[Token]) -> str:
        """Take the next tokens; return the text that became safe to show.

        Raises:
            BackendError: The target could not be asked, or spells otherwise what it has spelled before.
        """
        for token in tokens:
            self._held.append(None if token.ends or await self._is_hidden(token) else token.id)
        text = await self._spelled(len(self._held))
        if text.endswith(HALF):
            return ""  # as engines do, which show nothing of a token that ends inside a character
        if self._stops.would_match(self._new(text)):
            return await self._release(*await self._whole())
        return await self._release(len(self._held), text)

    async def finish(self) -> str:
        """Nothing follows; return what was held back and belongs to the answer. Raises as `push` does."""
        if self.matched is not None:
            return ""
        shown = await self._release(*await self._whole())
        if self.matched is not None:
            return shown
        half = self._new(await self._spelled(len(self._held))) if self._shows_halves else ""
        self.tokens += len(self._held)
        return shown + self._stops.release() + half

    async def _whole(self) -> tuple[int, str]:
        """How many of the held tokens end in whole characters, or complete a stop string; and the text then.

        Token by token, because an engine looks after each: a stop string ends the answer with its own token.
        """
        whole = 0, self._released
        for count in range(1, len(self._held) + 1):
            text = await self._spelled(count)
            if not text.endswith(HALF):
                whole = count, text
                if self._stops.would_match(self._new(text)):
                    break
        return whole

    async def _release(self, count: int, text: str) -> str:
        """Let go of the first `count` held tokens, with which the window's text is `text`."""
        piece = self._new(text)
        self._window += [token for token in self._held[:count] if token is not None]
        self._released = text
        del self._held[:count]
        self.tokens += count
        if len(self._window) > LONGEST_WINDOW:
            self._window = self._window[-TAIL:]
            self._released = await self._spell(self._window)
        return self._stops.push(piece)

    async def _spelled(self, count: int) -> str:
        """The text of the window and the first `count` held tokens."""
        ids = [token for token in self._held[:count] if token is not None]
        return await self._spell([*self._window, *ids]) if ids else self._released

    def _new(self, text: str) -> str:
        """What `text` has beyond the text that has been released."""
        if not text.startswith(self._released):
            raise BackendError("The backend's /detokenize spells an id otherwise once others follow it.")
        return text[len(self._released) :]

    async def _is_hidden(self, token: Token) -> bool:
        """Whether the engine leaves the token out of its text: a special token, and no half character."""
        if not token.silent:
            return False
        if token.id not in self._hidden:
            self._hidden[token.id] = _SPECIAL.fullmatch(await self._spell([token.id])) is not None
        return self._hidden[token.id]
