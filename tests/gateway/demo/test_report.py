import json
from random import Random

import pytest

from gateway.demo.calibrate import Costs
from gateway.demo.measure import Way
from gateway.demo.report import Predicted
from gateway.demo.results import make_report
from tests.fakes.trials import evidence, replay, replayed, stage, stages_of, trial, without_loop


def predicted(**curve: float | None) -> Predicted:
    return Predicted(at_k=1.0, by_k={int(k.removeprefix("k")): value for k, value in curve.items()})


def test_the_best_k_is_the_one_that_is_predicted_to_gain_most() -> None:
    found = predicted(k1=1.2, k2=1.4, k3=None)

    assert (found.best_k, found.best) == (2, 1.4)


def test_no_k_is_best_where_none_gains() -> None:
    found = predicted(k1=1.0, k2=0.9, k3=None)

    assert (found.best_k, found.best) == (None, None)


REQUIRED = {
    "off_tok_s",
    "would_acceptance",
    "would_steps",
    "acceptance",
    "prod_tok_s",
    "multiplier",
    "predicted_multiplier",
    "identical_share",
    "looping_share",
    "k_curve",
    "drafters",
    "gateway_loop",
}


@pytest.mark.parametrize("stages", [None, {}])
def test_the_json_has_every_promised_key_and_only_json_values(stages: dict[str, object] | None) -> None:
    trials = [trial(workload, name) for workload in ("code", "chat") for name in "ab"]
    report = make_report(evidence(trials, stages=stages), {"cpu": "abacus"}, Random(1))  # type: ignore[arg-type]

    found = json.loads(json.dumps(report.as_json(), allow_nan=False))

    assert set(found) == {"machine", "workloads", "checks"}
    assert found["machine"] == {"cpu": "abacus"}
    for workload in ("code", "chat"):
        numbers = found["workloads"][workload]
        assert numbers.keys() >= REQUIRED
        assert numbers["multiplier"].keys() >= {"value", "low", "high", "n_spec", "n_control"}
        assert list(numbers["k_curve"]) == ["1", "2", "3", "4", "5", "6", "7", "8"]
    assert set(map(type, found["checks"].values())) == {bool}


def test_the_json_has_intervals_positions_the_measured_curve_and_every_drafter() -> None:
    trials = [trial(name=name, other_seconds={Way.K1: 1.6}) for name in "ab"]
    stages = stages_of(trials) | {
        one.shadow.request_id: replayed(compared={"suffix": replay(accepted_tokens=10)}) for one in trials
    }

    numbers = make_report(evidence(trials, stages=stages), {}, Random(1)).as_json()["workloads"]["code"]

    assert numbers["off_tok_s_interval"] == [20.0, 20.0]
    assert numbers["acceptance_by_position"] == [1.0, 1.0, 0.75, 0.75, 0.5]
    assert numbers["measured_k_curve"]["1"] == {
        **{"value": 1.25, "low": 1.25, "high": 1.25},
        **{"n_spec": 2, "n_control": 4, "control_kind": "paired"},
    }
    assert numbers["measured_k_curve"]["8"]["value"] is None
    assert {name: found["acceptance"] for name, found in numbers["drafters"].items()} == {
        "ngram": 0.8,
        "suffix": 0.5,
    }


def test_the_json_has_what_the_loop_made_of_prod_and_would_make_of_every_drafter() -> None:
    trials = [trial(name=name) for name in "ab"]
    loop = Costs(plain_seconds=0.02, pass_seconds={1: 0.03, 9: 0.03})
    stages = stages_of(trials) | {"loop-code-a": stage("bypass", reason="not_calibrated")}

    found = evidence(trials, stages=stages, loop_costs={"ngram": loop})
    numbers = make_report(found, {}, Random(1)).as_json()["workloads"]["code"]

    assert numbers["gateway_loop"]["multiplier"]["value"] is None
    assert numbers["gateway_loop"]["not_speculated"] == {"not_calibrated": 1}
    assert "has 1" in numbers["gateway_loop"]["reasons"]["multiplier"]
    assert numbers["drafters"]["ngram"]["gateway_loop"]["predicted_multiplier"] == pytest.approx(4 / 3)


def test_a_demo_without_the_loop_says_so_where_its_numbers_would_be() -> None:
    trials = [without_loop(trial(name=name)) for name in "ab"]

    numbers = make_report(evidence(trials), {}, Random(1)).as_json()["workloads"]["code"]

    assert numbers["gateway_loop"] is None
    assert numbers["reasons"]["gateway_loop"] == "a quick demo leaves it out"
    assert numbers["multiplier"]["value"] == pytest.approx(2.0)
