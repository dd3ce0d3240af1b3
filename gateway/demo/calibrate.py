"""How long a pass takes, by the number of tokens fed: measured on other prompts than it predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

_METRIC = "ace_embedded_pass_seconds"
_KS = tuple(range(1, 9))
REQUESTS_PER_ROUND = 1 + len(_KS)


def calibrate(
    *, read_metrics: Callable[[], str], ask: Callable[[dict[str, object]], object], rounds: int
) -> dict[int, float]:
    """Mean seconds of a pass by its width (1 + drafts), over requests made here only.

    Args:
        read_metrics: The backend's `/metrics` page.
        ask: Answers one request with the given `vllm_xargs`. Nobody else may be asking meanwhile.
        rounds: How often every K is asked; more rounds even out what else the machine does.
    """
    before = _read_passes(read_metrics())
    for _ in range(rounds):
        ask({"ace_mode": "off"})
        for k in _KS:
            ask({"ace_mode": "prod", "ace_k": k})
    return _mean_seconds(before, _read_passes(read_metrics()))


def _mean_seconds(
    before: Mapping[int, tuple[float, float]], after: Mapping[int, tuple[float, float]]
) -> dict[int, float]:
    means = {}
    for width, (seconds, passes) in sorted(after.items()):
        earlier_seconds, earlier_passes = before.get(width, (0.0, 0.0))
        if passes > earlier_passes:
            means[width] = (seconds - earlier_seconds) / (passes - earlier_passes)
    return means


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
