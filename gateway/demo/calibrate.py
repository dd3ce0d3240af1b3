"""How long a pass takes, by the number of tokens fed: measured on other prompts than it predicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

LOOKUP = "ngram"
"""Stands for every drafter that looks its drafts up: against a pass, that takes no time."""

TIMED = (LOOKUP, "draft_model")
_LOOKUPS = frozenset({LOOKUP, "suffix"})

_METRIC = "ace_embedded_pass_seconds"
_KS = (1, 3, 5, 8)
REQUESTS_PER_ROUND = 2 + len(TIMED) * len(_KS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What passes take on this machine: means over many.

    Attributes:
        plain_seconds: One of plain decoding; None if there was none.
        pass_seconds: One that drafts, by its width (1 + drafts), the time of drafting included.
    """

    plain_seconds: float | None
    pass_seconds: Mapping[int, float]


def loop_costs(calibration: Mapping[str, Any]) -> Costs:
    """What steps of the gateway's loop take, from a calibration as the REST API shows it."""
    draft_seconds = calibration["draft_seconds"]
    return Costs(
        plain_seconds=calibration["plain_seconds"],
        pass_seconds={
            1 + int(drafts): seconds + draft_seconds[drafts]
            for drafts, seconds in calibration["verify_seconds"].items()
        },
    )


@dataclass(slots=True)
class _Times:
    """Summed seconds and passes, by width."""

    seconds: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    passes: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))


class Calibration:
    """Mean seconds of a pass by its width (1 + drafts), drafting included, over requests made here only.

    Rounds are spread over a run, since a machine is not equally fast all the time.

    Args:
        read_metrics: The backend's `/metrics` page.
        ask: Answers one request with the given `vllm_xargs`. Nobody else may be asking meanwhile.
    """

    def __init__(
        self, *, read_metrics: Callable[[], str], ask: Callable[[dict[str, object]], object]
    ) -> None:
        self._read_metrics = read_metrics
        self._ask = ask
        self._plain = _Times()
        self._drafting = {drafter: _Times() for drafter in TIMED}

    def warm_up(self) -> None:
        """One request that counts for nothing: a server's first is slower than all others."""
        self._ask({"ace_mode": "off"})

    def add_round(self) -> None:
        """Decode with every timed drafter at several K, and plainly before and after."""
        self._time(self._plain, {"ace_mode": "off"})
        for drafter, times in self._drafting.items():
            for k in _KS:
                self._time(times, {"ace_mode": "prod", "ace_k": k, "ace_drafter": drafter})
        self._time(self._plain, {"ace_mode": "off"})

    def costs(self, drafter: str) -> Costs:
        """What passes take with a drafter, over all rounds so far; widths that no round saw are absent."""
        plain = _means(self._plain)
        times = self._drafting[LOOKUP if drafter in _LOOKUPS else drafter]
        return Costs(plain_seconds=plain.get(1), pass_seconds=_means(times) | plain)

    def _time(self, times: _Times, arguments: dict[str, object]) -> None:
        before = _read_passes(self._read_metrics())
        self._ask(arguments)
        for width, (seconds, passes) in _read_passes(self._read_metrics()).items():
            earlier_seconds, earlier_passes = before.get(width, (0.0, 0.0))
            times.seconds[width] += seconds - earlier_seconds
            times.passes[width] += passes - earlier_passes


def _means(times: _Times) -> dict[int, float]:
    return {width: times.seconds[width] / passes for width, passes in sorted(times.passes.items()) if passes}


def _read_passes(page: str) -> dict[int, tuple[float, float]]:
    """Width to (summed seconds, passes) of a metrics page."""
    seconds: dict[int, float] = {}
    passes: dict[int, float] = {}
    for family in text_string_to_metric_families(page):
        if family.name != _METRIC:
            continue
        for sample in family.samples:
            if sample.name == f"{_METRIC}_sum":
                seconds[int(sample.labels["width"])] = sample.value
            elif sample.name == f"{_METRIC}_count":
                passes[int(sample.labels["width"])] = sample.value
    return {width: (total, passes.get(width, 0.0)) for width, total in seconds.items()}
