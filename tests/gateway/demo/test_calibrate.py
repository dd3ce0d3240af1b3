import pytest

from gateway.demo.calibrate import REQUESTS_PER_ROUND, TIMED, Calibration, Costs, loop_costs


class Backend:
    """Makes one plain pass and three full ones for each request.

    A pass of width w takes 10 + w ms, with a draft model 10 + 2 w ms.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        # Somebody else's passes, made before: much slower.
        self._passes: dict[int, list[float]] = {1: [9.0] * 5, 6: [9.0] * 5}

    def ask(self, arguments: dict[str, object]) -> None:
        self.asked.append(arguments)
        k = arguments.get("ace_k", 0)
        assert isinstance(k, int)
        slowness = 2 if arguments.get("ace_drafter") == "draft_model" else 1
        for width in (1, 1 + k, 1 + k, 1 + k):
            self._passes.setdefault(width, []).append((10 + slowness * width) / 1000)

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

    widths = (1, 2, 4, 6, 9)
    lookup, draft_model = calibration.costs("ngram"), calibration.costs("draft_model")
    assert lookup.plain_seconds == draft_model.plain_seconds == pytest.approx(0.011)
    assert lookup.pass_seconds == pytest.approx({w: (10 + w) / 1000 for w in widths})
    assert draft_model.pass_seconds == pytest.approx({w: (10 + 2 * w) / 1000 for w in widths} | {1: 0.011})
    assert calibration.costs("suffix") == lookup


def test_the_warm_up_counts_for_nothing() -> None:
    backend = Backend()
    calibration = Calibration(read_metrics=backend.metrics, ask=backend.ask)

    calibration.warm_up()

    assert calibration.costs("ngram") == Costs(plain_seconds=None, pass_seconds={})
    assert backend.asked == [{"ace_mode": "off"}]


def test_plain_decoding_and_every_timed_drafter_are_asked_in_each_round() -> None:
    backend = Backend()

    Calibration(read_metrics=backend.metrics, ask=backend.ask).add_round()

    assert backend.asked == [
        {"ace_mode": "off"},
        *(
            {"ace_mode": "prod", "ace_k": k, "ace_drafter": drafter}
            for drafter in TIMED
            for k in (1, 3, 5, 8)
        ),
        {"ace_mode": "off"},
    ]
    assert len(backend.asked) == REQUESTS_PER_ROUND


def test_a_backend_without_the_metric_gives_no_times() -> None:
    calibration = Calibration(read_metrics=lambda: "", ask=lambda _: None)

    calibration.add_round()

    assert calibration.costs("ngram") == Costs(plain_seconds=None, pass_seconds={})


def test_a_step_of_the_loop_takes_its_call_and_its_drafting() -> None:
    shown = {
        "plain_seconds": 0.07,
        "verify_seconds": {"0": 0.08, "5": 0.1},
        "draft_seconds": {"0": 0.001, "5": 0.02},
    }

    costs = loop_costs(shown)

    assert costs.plain_seconds == 0.07
    assert costs.pass_seconds == pytest.approx({1: 0.081, 6: 0.12})
