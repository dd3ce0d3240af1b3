"""Looping answers, which flatter every drafter that copies (design.md 9)."""

from __future__ import annotations

from collections.abc import Iterable

LOOKED_AT = 64
"""Last tokens of an answer that decide."""

_GRAM = 4
_DISTINCT = 16


def is_looping(ids: Iterable[int]) -> bool:
    """Whether the last 64 tokens hold fewer than 16 distinct 4-grams.

    An answer too short to hold 16 (under 19 tokens) has had no room to loop and is never marked.
    """
    tail = tuple(ids)[-LOOKED_AT:]
    grams = [tail[start : start + _GRAM] for start in range(len(tail) - _GRAM + 1)]
    return len(grams) >= _DISTINCT > len(set(grams))
