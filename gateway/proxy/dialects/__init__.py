"""How a decision is spelled in a request, by engine kind."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.fleet.model import EngineKind
from gateway.proxy.dialects import vllm_xargs
from gateway.proxy.dialects.model import Dialect, Spelling

DIALECTS: Mapping[EngineKind, Dialect] = {
    # A generic server speaks the in_engine contract where its probe says so.
    EngineKind.OPENAI: vllm_xargs.spell,
    EngineKind.EMBEDDED: vllm_xargs.spell,
}

__all__ = ["DIALECTS", "Dialect", "Spelling"]
