"""Does a server say in `/metrics` how many requests it is running, and how many tokens it has made?

Names are those of vLLM, SGLang, llama.cpp and the embedded backend in Prometheus' text format. A page in
another format is asked for once and never again: TensorRT-LLM answers a list that reading empties.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from probes.model import Capability, Finding
from probes.question import Question, Target, no, unknown, without_success, yes

PATH = "/metrics"

_RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "ace_embedded_requests_running",
)
_GENERATED = (
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
    "ace_embedded_generation_tokens_total",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What one look at `/metrics` shows. None for what it does not say.

    Attributes:
        running: Sequences that the engine is computing, over all its ranks and models.
        generated: Tokens that it has generated since it started.
    """

    running: float | None = None
    generated: float | None = None


def read_load(page: bytes) -> EngineLoad:
    """Read a page in Prometheus' text format. Never raises; series of one name are added up."""
    return EngineLoad(running=_sum(_RUNNING_LINE, page), generated=_sum(_GENERATED_LINE, page))


async def ask_load_gauge(target: Target) -> Finding:
    """Is there a gauge of running requests?"""
    reply = await target.wire.get(PATH)
    if not reply.ok:
        return without_success(Capability.LOAD_GAUGE, reply)
    load = read_load(reply.text.encode())
    if load.running is None:
        return no(Capability.LOAD_GAUGE, f"{PATH} holds none of {', '.join(_RUNNING)}")
    if load.running < 0:
        return unknown(Capability.LOAD_GAUGE, f"{PATH} says that {load.running:g} requests are running")
    made = "no count of tokens" if load.generated is None else f"{load.generated:.0f} tokens made"
    return yes(Capability.LOAD_GAUGE, f"{PATH} says {load.running:.0f} running, {made}")


LOAD_GAUGE = Question(capability=Capability.LOAD_GAUGE, tokens=0, ask=ask_load_gauge)


def _line_of(names: tuple[str, ...]) -> re.Pattern[bytes]:
    alternatives = "|".join(map(re.escape, names))
    number = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
    return re.compile(rf"^(?:{alternatives})(?:\{{.*\}})? +({number})(?: |\r?$)".encode(), re.MULTILINE)


_RUNNING_LINE, _GENERATED_LINE = _line_of(_RUNNING), _line_of(_GENERATED)


def _sum(line: re.Pattern[bytes], page: bytes) -> float | None:
    found = [float(number) for number in line.findall(page)]
    return sum(found) if found else None
