"""One sentence per way to carry out prod: possible, or what is missing and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.fleet.model import Backend, BackendState
from gateway.policy.decide import EXECUTORS
from probes.model import Capability, Support

_REMEDIES = {
    Capability.IN_ENGINE: (
        "serve the model with a server that takes vllm_xargs.ace_mode and reports "
        "metrics.speculative_decoding, as `ace embedded-backend` does"
    ),
}


@dataclass(frozen=True, slots=True)
class ExecutorVerdict:
    """Whether one executor can serve prod on one backend, and why or why not."""

    name: str
    possible: bool
    sentence: str


def executors_of(backend: Backend) -> tuple[ExecutorVerdict, ...]:
    """What can be said of every executor, best first."""
    return tuple(_verdict(name, capability, backend) for name, capability in EXECUTORS.items())


def _verdict(name: str, capability: Capability, backend: Backend) -> ExecutorVerdict:
    finding = backend.findings.get(capability)
    evidence = f" ({finding.evidence.rstrip('.')})" if finding and finding.evidence else ""
    answer = backend.supports(capability)
    if answer is Support.NO:
        missing = f"is not possible: the finding {capability} is no{evidence}; {_REMEDIES[capability]}"
    elif answer is Support.UNKNOWN:
        missing = (
            f"is not possible yet: the finding {capability} is unknown{evidence}; "
            f"run `ace backends probe {backend.name}` once the server answers"
        )
    elif backend.state is BackendState.DOWN:
        missing = f"is possible again once the backend is up{evidence}"
    else:
        return ExecutorVerdict(name, possible=True, sentence=f"{name} is possible{evidence}.")
    return ExecutorVerdict(name, possible=False, sentence=f"{name} {missing}.")
