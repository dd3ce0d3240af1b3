import json
from pathlib import Path

from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace

KEY = {
    "id": "k1",
    "name": "ci",
    "tenant": "search",
    "prefix": "ace-abc",
    "created_at": 0.0,
    "revoked_at": None,
}


def test_a_new_key_is_alone_on_stdout(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(201, {**KEY, "key": "ace-abcdef"})]
    result = ace("keys", "add", "ci", "--tenant", "search", "--gateway", rest.url)
    assert result.stdout == "ace-abcdef\n"
    assert "k1" in result.stderr
    assert rest.asked[0].body == {"name": "ci", "tenant": "search"}


def test_keys_are_listed_through_the_gateway(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"keys": [KEY]})]
    line = ace("keys", "list", "--gateway", rest.url).stdout.splitlines()[1]
    assert line.split() == ["k1", "ci", "search", "ace-abc", "1970-01-01T00:00:00+00:00", "-"]


def test_a_key_is_revoked_through_the_gateway(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(204, None)]
    assert ace("keys", "revoke", "k1", "--gateway", rest.url).stdout == "Revoked k1.\n"
    assert (rest.asked[0].method, rest.asked[0].path) == ("DELETE", "/admin/v1/keys/k1")


def test_keys_are_made_listed_and_revoked_in_a_data_folder_without_a_gateway(
    ace: Ace, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path / "data"), "--json")
    made = json.loads(ace("keys", "add", "ci", "--tenant", "search", *data).stdout)
    (listed,) = json.loads(ace("keys", "list", *data).stdout)["keys"]
    assert set(listed) == set(KEY)
    assert (listed["id"], listed["name"], listed["tenant"]) == (made["id"], "ci", "search")
    assert made["key"].startswith(listed["prefix"])
    assert ace("keys", "revoke", made["id"], *data).exit_code == 0
    (revoked,) = json.loads(ace("keys", "list", *data).stdout)["keys"]
    assert revoked["revoked_at"] is not None


def test_a_key_that_was_made_without_a_gateway_is_shown_as_a_gateway_would(ace: Ace, tmp_path: Path) -> None:
    made = json.loads(ace("keys", "add", "ci", "--tenant", "t", "--json", "--data", str(tmp_path)).stdout)
    assert set(made) == {"id", "name", "tenant", "key", "prefix"}


def test_an_unknown_key_id_is_one_line(ace: Ace, tmp_path: Path) -> None:
    result = ace("keys", "revoke", "nope", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "'nope'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_keys_says_how_to_make_one(ace: Ace, tmp_path: Path) -> None:
    assert "ace keys add" in ace("keys", "list", "--data", str(tmp_path)).stdout
