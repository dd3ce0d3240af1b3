"""How long a pass takes, by the number of tokens fed: measured on other prompts than it predicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

_METRIC = "ace_embedded_pass_seconds"
_KS = tuple(range(1, 9))
REQUESTS_PER_ROUND = 1 + len(_KS)


class Calibration:
    """Mean seconds of a pass by its width (1 + drafts), over requests made here only.

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
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._passes: defaultdict[int, float] = defaultdict(float)

    def warm_up(self) -> None:
        """One request that counts for nothing: a server's first is slower than all others."""
        self._ask({"ace_mode": "off"})

    def add_round(self) -> None:
        """Decode plainly and with every K, once each."""
        before = _read_passes(self._read_metrics())
        self._ask({"ace_mode": "off"})
        for k in _KS:
            self._ask({"ace_mode": "prod", "ace_k": k})
        for width, (seconds, passes) in _read_passes(self._read_metrics()).items():
            earlier_seconds, earlier_passes = before.get(width, (0.0, 0.0))
            self._seconds[width] += seconds - earlier_seconds
            self._passes[width] += passes - earlier_passes

    @property
    def pass_seconds(self) -> dict[int, float]:
        """Width to mean seconds, over all rounds so far; widths that no round saw are absent."""
        return {
            width: self._seconds[width] / passes
            for width, passes in sorted(self._passes.items())
            if passes > 0
        }


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
