"""From token ids to the text a client may see: whole characters only, and nothing past a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


Decode = Callable[[Sequence[int]], str]
"""Turns ids into text, special tokens left out."""


class Detokenizer:
    """Turns ids into text one at a time.

    Promises: the pieces and the tail joined are the text of the whole answer, and no piece ends
    inside a character.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        # A window of ids ending in the newest; its text up to `_told` has been handed out. Tokens
        # already told stay in it while they may change how the next one is spelled (leading spaces).
        self._window: list[int] = []
        self._told = ""

    def push(self, token: int) -> str:
        """Return the text that `token` completes."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT):
            return ""
        piece = text[len(self._told) :]
        if piece:
            self._window = self._window[-1:]
            self._told = self._decode(self._window)
        return piece

    def tail(self) -> str:
        """Return what is left when no token follows: a character that was never completed."""
        return self._decode(self._window)[len(self._told) :]


class StopStrings:
    """Cuts a text at the first stop string, and holds back what may yet become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Return the text that is now safe to show. Once `matched` is set, the text has ended there."""
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
        """Return what was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class AnswerText:
    """The text of one answer as it grows."""

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = StopStrings(stops)
        self._pieces: list[str] = []

    def push(self, token: int) -> str | None:
        """Add a token; return the stop string that it completed, if it did."""
        self._pieces.append(self._stops.push(self._detokenizer.push(token)))
        return self._stops.matched

    def finish(self) -> None:
        """Nothing follows: what was held back is part of the text, unless a stop string ended it."""
        if self._stops.matched is None:
            self._pieces.append(self._stops.release() + self._detokenizer.tail())

    def take(self) -> str:
        """Return the text that became safe since the last call."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text
