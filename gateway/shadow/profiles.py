"""Whose drafting habits a replay follows, as a fact about the backend that answered."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.fleet.model import EngineKind

PROFILES: Mapping[EngineKind, str] = {
    EngineKind.EMBEDDED: "embedded",
    EngineKind.OPENAI: "runner",
}
"""In the draft runner's words. Where the server cannot draft by itself, the runner would draft for it."""
