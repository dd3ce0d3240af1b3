"""`ace kill` and `ace overlays`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace

SWITCH = {"file": "/data/kill", "thrown": False, "error": None}
EVERYTHING: dict[str, Any] = {"tenant": None, "model": None, "backend": None, "rule": None}
SHOWN: dict[str, Any] = {
    "id": "k1",
    "kind": "kill",
    "scope": EVERYTHING,
    "value": None,
    "author": "ann",
    "reason": "too slow",
    "created_at": 0.0,
    "expires_at": None,
    "lifted_at": None,
    "lifted_by": None,
    "holds": True,
}


@pytest.fixture(autouse=True)
def me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")


def test_kill_says_what_is_killed_and_how_to_resume(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(201, SHOWN)]
    result = ace("kill", "--gateway", rest.url)
    assert result.stdout == "Killed everything. Resume: ace kill --lift k1\n"
    assert (rest.asked[0].method, rest.asked[0].path) == ("POST", "/admin/v1/kill")
    assert rest.asked[0].body == {"author": "ann"}


def test_a_kill_may_be_narrowed_and_end_by_itself(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(201, {**SHOWN, "scope": {**EVERYTHING, "tenant": "search"}, "expires_at": 3600.0})]
    narrowed = ("--tenant", "search", "--reason", "too slow", "--for", "1h")
    result = ace("kill", *narrowed, "--gateway", rest.url)
    assert result.stdout.startswith("Killed tenant search until 1970-01-01T01:00:00+00:00.")
    assert rest.asked[0].body == {
        "author": "ann",
        "tenant": "search",
        "reason": "too slow",
        "lasts": "1h",
    }


def test_a_kill_that_was_not_stored_is_the_gateways_own_message(ace: Ace, rest: RestGateway) -> None:
    message = "NOTHING WAS KILLED: ... touch /data/kill"
    rest.answers = [(503, {"error": {"message": message}})]
    result = ace("kill", "--gateway", rest.url)
    assert result.exit_code == 1
    assert message in result.stderr


def test_one_kill_is_lifted_by_its_id(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(204, None)]
    assert ace("kill", "--lift", "k1", "--gateway", rest.url).stdout == "Lifted k1.\n"
    assert (rest.asked[0].method, rest.asked[0].path) == ("DELETE", "/admin/v1/overlays/k1?author=ann")


def test_lifting_without_an_id_lifts_all_and_says_what_still_kills(ace: Ace, rest: RestGateway) -> None:
    still = {"active": True, "kills": [{**SHOWN, "author": "/data/kill"}], "read": True, "switch": SWITCH}
    rest.answers = [(200, {**still, "active": False, "kills": []}), (200, still)]
    assert ace("kill", "--lift", "--gateway", rest.url).stdout == "Nothing is killed any more.\n"
    assert rest.asked[0].path == "/admin/v1/kill?author=ann"
    result = ace("kill", "--lift", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "these still kill: /data/kill" in result.stderr


def test_the_kill_file_is_written_and_removed_without_a_gateway(ace: Ace, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    result = ace("kill", "--tenant", "search", "--reason", "too slow", *data)
    assert f"{tmp_path / 'kill'} kills tenant search." in result.stdout
    assert (tmp_path / "kill").read_text().splitlines()[1] == "tenant search"
    assert "ann: too slow" in (tmp_path / "kill").read_text()
    assert "kills everything" in ace("kill", *data).stdout
    assert ace("kill", "--lift", *data).exit_code == 0
    assert not (tmp_path / "kill").exists()


def test_the_kill_file_is_where_the_gateway_looks(ace: Ace, tmp_path: Path) -> None:
    ace("kill", "--data", str(tmp_path / "data"), ACE_KILL_FILE=str(tmp_path / "switch"))
    assert (tmp_path / "switch").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["k1"], "An ID is for --lift"),
        (["--lift", "--tenant", "a"], "--lift takes an ID or nothing"),
        (["--data", "DIR", "--for", "1h"], "no time limit"),
        (["--data", "DIR", "--tenant", "a", "--model", "m"], "names one of tenant, model and backend"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    ace: Ace, tmp_path: Path, words: list[str], said: str
) -> None:
    result = ace("kill", *[str(tmp_path) if word == "DIR" else word for word in words])
    assert result.exit_code == 2
    assert said in result.stderr


def test_overlays_are_listed(ace: Ace, rest: RestGateway) -> None:
    demoted = {**SHOWN, "id": "d1", "kind": "demote", "value": "off", "scope": {**EVERYTHING, "rule": "chat"}}
    lifted = {**SHOWN, "holds": False, "lifted_at": 5.0, "lifted_by": "bob"}
    answer = {"overlays": [demoted, lifted], "read": True, "switch": SWITCH}
    rest.answers = [(200, answer)]
    lines = ace("overlays", "list", "--all", "--gateway", rest.url).stdout.splitlines()
    assert rest.asked[0].path == "/admin/v1/overlays?all=true"
    assert "rule chat" in lines[1]
    assert "in force" in lines[1]
    assert "lifted by bob" in lines[2]


def test_a_switch_that_is_not_understood_is_shown_first(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"overlays": [], "read": False, "switch": {**SWITCH, "error": "line 1 is 'x'"}})]
    result = ace("overlays", "list", "--gateway", rest.url)
    assert "line 1 is 'x'" in result.stderr
    assert "not been read yet" in result.stderr
    assert "the policy holds as it stands" in result.stdout


@pytest.mark.parametrize(("value", "sent"), [("off", "off"), ("3", 3)])
def test_a_rule_is_narrowed_and_restored(ace: Ace, rest: RestGateway, value: str, sent: object) -> None:
    rest.answers = [(201, SHOWN), (204, None)]
    kind = "demote" if value == "off" else "lookahead"
    result = ace("overlays", "add", kind, "chat", value, "--reason", "worse", "--gateway", rest.url)
    assert "ace overlays remove k1" in result.stdout
    body: Any = rest.asked[0].body
    assert (body["kind"], body["value"], body["scope"]["rule"]) == (kind, sent, "chat")
    assert ace("overlays", "remove", "k1", "--gateway", rest.url).stdout == "Lifted k1.\n"


def test_every_command_has_a_json_form(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(201, SHOWN), (204, None), (200, {"active": False}), (201, SHOWN)]
    for words in (
        ["kill"],
        ["kill", "--lift", "k1"],
        ["kill", "--lift"],
        ["overlays", "add", "demote", "r", "off", "--reason", "x"],
    ):
        assert isinstance(json.loads(ace(*words, "--json", "--gateway", rest.url).stdout), dict)
