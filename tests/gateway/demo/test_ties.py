from typing import Any

from gateway.demo.ties import undecided
from tests.fakes.trials import IDS, trial


class Backend:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        return {"choices": [{"logprobs": {"top_logprobs": [{" a": -1.5, " b": -0.5}]}}]}


def test_the_target_is_asked_at_the_first_difference_of_each_differing_answer() -> None:
    backend = Backend()
    prod = (*IDS[:10], 5, 6)

    best = undecided([trial(name="same"), trial(name="x", prod=prod)], model="m1", complete=backend.complete)

    assert best == {"prod-code-x": [-0.5, -1.5]}
    (asked,) = backend.asked
    assert asked["prompt"] == [1, 2, 3, *IDS[:10]]
    assert (asked["model"], asked["max_tokens"], asked["logprobs"]) == ("m1", 1, 2)
