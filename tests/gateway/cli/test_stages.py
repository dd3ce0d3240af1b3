import json

from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace

STAGE = {
    "at": 0.0,
    "request_id": "r",
    "mode": "shadow",
    "action": "would_speculate",
    "reason": None,
    "model": "m",
    "backend": "b",
    "rule": "chat",
    "drafter": "ngram",
    "k": 5,
    "draft_tokens": 50,
    "accepted_tokens": 33,
    "acceptance_rate": 0.66,
    "tokens_per_second": None,
    "multiplier": None,
}


def test_the_newest_records_are_a_table(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"stages": [STAGE]})]
    heading, line = ace("stages", "--limit", "7", "--gateway", rest.url).stdout.splitlines()
    assert rest.asked[0].path == "/admin/v1/stages?limit=7"
    assert heading.split()[:3] == ["at", "mode", "action"]
    assert line.split() == [
        *("1970-01-01T00:00:00+00:00", "shadow", "would_speculate", "-", "m", "b", "chat", "ngram"),
        *("5", "50", "33", "0.66", "-", "-"),
    ]


def test_json_is_the_rest_answer(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"stages": [STAGE]})]
    assert json.loads(ace("stages", "--json", "--gateway", rest.url).stdout) == {"stages": [STAGE]}


def test_no_records_says_where_they_come_from(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"stages": []})]
    assert "shadow or prod" in ace("stages", "--gateway", rest.url).stdout
