import json

import pytest

from gateway.errors import MalformedRequest
from gateway.policy.explain import as_json, facts_from
from gateway.policy.model import Action, Control, Decision, Facts, Mode, Workload


def test_named_facts_are_taken_and_the_rest_keep_their_defaults() -> None:
    given = {"model": "m", "workload": "rag", "temperature": 0, "fields": ["tools"]}
    assert facts_from(given) == Facts(
        model="m", workload=Workload.RAG, temperature=0, fields=frozenset({"tools"})
    )
    assert facts_from({}) == Facts()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"tennant": "a"},
            "facts: tennant is not a known key. Did you mean 'tenant'? Allowed: endpoint, fields, model, ",
        ),
        ({"workload": "coding"}, "facts: workload is 'coding'. Allowed: chat, code, "),
        ({"temperature": "hot"}, "facts: temperature is 'hot'. Allowed: a number."),
        ({"fields": "tools"}, "facts: fields is 'tools'. Allowed: a list."),
        ({"fields": [3]}, "facts: fields.0 is 3. Allowed: text"),
        ([], "facts: the value is []. Allowed: a mapping."),
        (None, "facts: the value is empty. Allowed: a mapping."),
    ],
)
def test_what_is_no_fact_is_refused(given: object, complaint: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        facts_from(given)
    assert str(caught.value).startswith(complaint)


def test_every_complaint_is_told() -> None:
    with pytest.raises(MalformedRequest) as caught:
        facts_from({"a": 1, "stream": "yes"})
    assert len(str(caught.value).splitlines()) == 2


def test_a_decision_is_told_as_json() -> None:
    decision = Decision(mode=Mode.SHADOW, action=Action.SKIP, rule="a", reason="not_sampled", trail=("a: b",))
    told = json.loads(json.dumps(as_json(decision)))
    assert told["trail"] == ["a: b"]
    assert told["decision"] == {
        "mode": "shadow",
        "action": "skip",
        "rule": "a",
        "reason": "not_sampled",
        "drafter": None,
        "executor": None,
        "strategy": None,
        "detail": None,
        "k": None,
        "control": None,
        "max_tokens_per_minute": None,
        "compare": [],
    }


def test_what_a_speculated_request_is_compared_with_is_told_too() -> None:
    decision = Decision(mode=Mode.PROD, action=Action.SPECULATE, rule="a", control=Control(replica="plain"))
    told = json.loads(json.dumps(as_json(decision)))
    assert told["decision"]["control"] == {"block": 60.0, "fraction": 0.1, "replica": "plain"}
