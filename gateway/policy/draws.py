"""Draws that anyone can repeat: no state, so every process and every replay of a decision sees the same."""

from __future__ import annotations

import hashlib


def draw(*words: str) -> float:
    """A number in [0, 1) that these words always give; the first keeps draws for different purposes apart."""
    digest = hashlib.blake2b("\0".join(words).encode(errors="surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53
