import pytest

from gateway.policy.model import Facts, Match, Rule, Workload

FACTS = Facts(model="llama-3-8b", tenant="search", workload=Workload.RAG, temperature=0.7)


@pytest.mark.parametrize(
    "match",
    [
        Match(),
        Match(model=("qwen*", "llama-3*")),
        Match(tenant=("search",)),
        Match(workload=(Workload.CHAT, Workload.RAG)),
        Match(max_temperature=0.7),
    ],
)
def test_a_condition_that_holds(match: Match) -> None:
    assert match.why_not(FACTS) is None


@pytest.mark.parametrize(
    ("match", "reason"),
    [
        (Match(model=("llama",)), "model 'llama-3-8b' is none of ['llama']"),
        (Match(tenant=("Search",)), "tenant 'search' is none of ['Search']"),
        (Match(workload=(Workload.CHAT,)), "workload rag is none of ['chat']"),
        (Match(max_temperature=0.5), "temperature 0.7 is above 0.5"),
        (Match(tenant=("search",), max_temperature=0), "temperature 0.7 is above 0"),
    ],
)
def test_a_condition_that_does_not_hold_is_named(match: Match, reason: str) -> None:
    assert match.why_not(FACTS) == reason


def test_an_unstated_temperature_is_the_servers_default() -> None:
    assert Match(max_temperature=0.9).why_not(Facts()) == "temperature 1 is above 0.9"


def test_a_range_of_lookahead_asks_for_its_upper_end() -> None:
    assert Rule.model_validate({"name": "a", "lookahead": {"min": 2, "max": 6}}).k == 6
