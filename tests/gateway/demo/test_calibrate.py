import pytest

from gateway.demo.calibrate import REQUESTS_PER_ROUND, Calibration


class Backend:
    """Makes one plain pass and three full ones for each request, a pass of width w taking 10 + w ms."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        # Somebody else's passes, made before: much slower.
        self._passes: dict[int, list[float]] = {1: [9.0] * 5, 6: [9.0] * 5}

    def ask(self, arguments: dict[str, object]) -> None:
        self.asked.append(arguments)
        k = arguments.get("ace_k", 0)
        assert isinstance(k, int)
        for width in (1, 1 + k, 1 + k, 1 + k):
            self._passes.setdefault(width, []).append((10 + width) / 1000)

    def metrics(self) -> str:
        lines = ["# HELP ace_embedded_pass_seconds s", "# TYPE ace_embedded_pass_seconds summary"]
        for width, taken in self._passes.items():
            lines.append(f'ace_embedded_pass_seconds_sum{{width="{width}"}} {sum(taken)!r}')
            lines.append(f'ace_embedded_pass_seconds_count{{width="{width}"}} {len(taken)}')
        lines += ["# TYPE ace_embedded_requests_running gauge", "ace_embedded_requests_running 0"]
        return "\n".join(lines) + "\n"


def test_pass_times_are_means_of_the_calibrations_own_passes() -> None:
    backend = Backend()
    calibration = Calibration(read_metrics=backend.metrics, ask=backend.ask)

    for _ in range(2):
        calibration.add_round()
        backend.ask({})  # somebody else's, between two rounds

    assert calibration.pass_seconds == pytest.approx({width: (10 + width) / 1000 for width in range(1, 10)})


def test_the_warm_up_counts_for_nothing() -> None:
    backend = Backend()
    calibration = Calibration(read_metrics=backend.metrics, ask=backend.ask)

    calibration.warm_up()

    assert calibration.pass_seconds == {}
    assert backend.asked == [{"ace_mode": "off"}]


def test_plain_decoding_and_every_k_are_asked_in_each_round() -> None:
    backend = Backend()

    Calibration(read_metrics=backend.metrics, ask=backend.ask).add_round()

    assert backend.asked == [{"ace_mode": "off"}, *({"ace_mode": "prod", "ace_k": k} for k in range(1, 9))]
    assert len(backend.asked) == REQUESTS_PER_ROUND


def test_a_backend_without_the_metric_gives_no_times() -> None:
    calibration = Calibration(read_metrics=lambda: "", ask=lambda _: None)

    calibration.add_round()

    assert calibration.pass_seconds == {}
