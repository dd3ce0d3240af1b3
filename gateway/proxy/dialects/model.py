"""What a dialect takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.policy.model import Decision
from gateway.proxy.intake import InferenceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A request's body as one decision wants it.

    Attributes:
        body: The client's bytes where nothing had to be said.
        edited: A word of ours was added, which an engine might refuse.
        hides_usage: The client did not ask for the stream's usage chunk, so it is not to see it.
    """

    body: bytes = field(repr=False)
    edited: bool = False
    hides_usage: bool = False


Dialect = Callable[[InferenceRequest, Decision], Spelling]
"""Spells a decision. One that asks for nothing gives the client's bytes, less what clients may not say."""
