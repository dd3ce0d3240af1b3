"""One sentence per way to carry out prod: possible, or what is missing and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.evidence.loop_costs import Calibration, costs_in_words
from gateway.fleet.model import Backend, BackendState
from gateway.policy.ways import EXECUTORS, Way, ways_of
from probes.model import Capability, Support

_REMEDIES: Mapping[Capability, str] = {
    Capability.IN_ENGINE: (
        "serve the model with a server that takes vllm_xargs.ace_mode and reports "
        "metrics.speculative_decoding, as `ace embedded-backend` does"
    ),
    Capability.STREAMING: "serve the model with a server that streams",
    Capability.TOKEN_ID_PROMPTS: "serve the model with a server that takes token ids as prompt, such as vLLM",
    Capability.RETURNED_TOKEN_IDS: (
        "serve the model with a server that has return_token_ids, such as vLLM from 0.10.2"
    ),
    Capability.TOKENIZE: "serve the model with a server that has /tokenize, such as vLLM",
    Capability.DETOKENIZE: "serve the model with a server that has /detokenize, such as vLLM",
    Capability.NEUTRAL_DEFAULTS: (
        "start the server without default penalties (vLLM: --generation-config vllm, "
        "SGLang: --sampling-defaults openai)"
    ),
    Capability.SCORED: "serve the model with `ace embedded-backend`",
    Capability.PROMPT_LISTS: "serve the model with a server that takes a list of prompts, such as vLLM",
}
"""For every finding that a way needs, how to get it."""


@dataclass(frozen=True, slots=True)
class ExecutorVerdict:
    """Whether one executor can serve prod on one backend, and why or why not."""

    name: str
    possible: bool
    sentence: str


def executors_of(backend: Backend, costs: Sequence[Calibration] = ()) -> tuple[ExecutorVerdict, ...]:
    """What can be said of every executor, best first.

    Args:
        backend: As probes last saw it.
        costs: Calibrations that count now, of this backend among others.
    """
    own = [calibration for calibration in costs if _is_of(calibration, backend)]
    return tuple(_verdict(executor, backend, own) for executor in EXECUTORS)


def _verdict(executor: str, backend: Backend, costs: Sequence[Calibration]) -> ExecutorVerdict:
    ways = ways_of(executor)
    # Where none is possible, the last asks for least of a server.
    way = next((way for way in ways if way.missing(backend) is None), ways[-1])
    if way.strategy is not None and backend.supports(Capability.SINGLE_PROCESS) is Support.NO:
        evidence = backend.findings[Capability.SINGLE_PROCESS].evidence.rstrip(".")
        sentence = f"is not possible: {evidence}; register each server by its own URL"
        return ExecutorVerdict(executor, possible=False, sentence=f"{executor} {sentence}.")
    if missing := way.missing(backend):
        sentence = _what_is_missing(missing, backend)
        return ExecutorVerdict(executor, possible=False, sentence=f"{executor} {sentence}.")
    known = _what_is_known(way, backend, costs)
    if backend.state is BackendState.DOWN:
        sentence = f"{executor} is possible again once the backend is up ({known})."
        return ExecutorVerdict(executor, possible=False, sentence=sentence)
    return ExecutorVerdict(executor, possible=True, sentence=f"{executor} is possible ({known}).")


def _is_of(calibration: Calibration, backend: Backend) -> bool:
    """Whether it was made on that instance, or on any where the backend is shown as one."""
    key = calibration.key
    return key.backend == backend.name and backend.instance in ("", key.instance)


def _what_is_missing(missing: Capability, backend: Backend) -> str:
    finding = backend.findings.get(missing)
    evidence = f" ({finding.evidence.rstrip('.')})" if finding and finding.evidence else ""
    if backend.supports(missing) is Support.NO:
        return f"is not possible: the finding {missing} is no{evidence}; {_REMEDIES[missing]}"
    return (
        f"is not possible yet: the finding {missing} is unknown{evidence}; "
        f"run `ace backends probe {backend.name}` once the server answers"
    )


def _what_is_known(way: Way, backend: Backend, costs: Sequence[Calibration]) -> str:
    """For a way with a strategy what a step of it costs, for others what the probe saw."""
    if way.strategy is None:
        return backend.findings[way.needs[-1]].evidence.rstrip(".")
    measured = [costs_in_words(found) for found in costs if found.key.strategy == way.strategy]
    unmeasured = f"{way.strategy}, not calibrated: `ace backends calibrate {backend.name}` measures it"
    return "; ".join(measured) or unmeasured
