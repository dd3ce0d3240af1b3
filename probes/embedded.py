"""The embedded backend: how it is recognised, and what it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes import openai
from probes.wire import Reply

NAME = "ace-embedded"

SUITE = openai.SUITE


def why_not_embedded(card: Mapping[str, Any], version: Reply) -> str | None:
    """What speaks against this being the embedded backend; None when both of its signs are there."""
    if card.get("owned_by") != NAME:
        return f"/v1/models says owned_by {str(card.get('owned_by'))[:60]!r}, not {NAME!r}"
    if version.dig("engine") != NAME:
        return f"its /version does not say engine {NAME!r}: {version.evidence}"
    return None
