import json
from pathlib import Path

import pytest

from gateway.cli.doctor import _skew
from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace
from tests.gateway.cli.test_checks import BACKEND, INSTALLATION, PAGE, POLICY, RUNNER

READY = {"ready": True, "reasons": [], "warnings": []}
NOBODY = "http://127.0.0.1:9"


def all_answers(now: float) -> list[tuple[int, object]]:
    return [
        (200, READY),
        (200, PAGE),
        (200, INSTALLATION | {"now": now}),
        (200, POLICY),
        (200, {"overlays": []}),
        (200, {"backends": [BACKEND]}),
        (200, {"runners": [RUNNER]}),
    ]


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_a_healthy_gateway_ends_with_status_0(ace: Ace, rest: RestGateway, at_home: Path) -> None:
    import time

    rest.answers = all_answers(time.time())
    result = ace("doctor", "--gateway", rest.url, ACE_TOKEN="t" * 20)
    assert result.exit_code == 0, result.output
    assert "ok       gateway: it is ready" in result.output
    assert "->" not in result.output
    assert {asked.path for asked in rest.asked} >= {"/readyz", "/metrics", "/admin/v1/installation"}


def test_operation_on_a_port_of_its_own_is_asked_for_through_the_operators_route(
    ace: Ace, rest: RestGateway, at_home: Path
) -> None:
    elsewhere = (404, {"error": {"code": "unknown_route"}})
    unready = READY | {"ready": False, "reasons": ["no store"]}
    told = INSTALLATION | {"now": 0.0, "ready": unready, "metrics": PAGE}
    rest.answers = [elsewhere, (200, told), *all_answers(0.0)[3:]]
    result = ace("doctor", "--gateway", rest.url)
    assert "not ready: no store" in result.output
    assert "records: none was lost" in result.output


def test_a_problem_ends_with_status_1_and_says_what_to_type(
    ace: Ace, rest: RestGateway, at_home: Path
) -> None:
    rest.answers = all_answers(0.0)
    rest.answers[5] = (200, {"backends": []})
    result = ace("doctor", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "problem  backends: none is registered\n         -> ace backends add NAME URL" in result.output
    assert "warning  clock" in result.output


def test_json_has_every_diagnosis(ace: Ace, rest: RestGateway, at_home: Path) -> None:
    rest.answers = all_answers(0.0)
    document = json.loads(ace("doctor", "--json", "--gateway", rest.url).output)
    assert document["healthy"] is True
    assert {"part", "state", "cause", "next_command"} == set(document["diagnoses"][0])


def test_a_gateway_that_is_down_is_a_problem_and_the_rest_is_checked_here(
    ace: Ace, at_home: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "policy.yaml"
    bad.write_text("version: 1\nrulez: []\n")
    data = tmp_path / "data"
    result = ace("doctor", "--gateway", NOBODY, "--data", str(data), "--policy", str(bad), "--json")
    assert result.exit_code == 1
    found = {d["part"]: d for d in json.loads(result.output)["diagnoses"]}
    assert found["gateway"]["next_command"] == "ace serve"
    assert "rulez" in found["policy file"]["cause"]
    assert "does not exist" in found["store"]["cause"]
    assert not data.exists(), "a doctor changes nothing"


def test_without_a_token_what_needs_none_is_still_judged(ace: Ace, rest: RestGateway, at_home: Path) -> None:
    rest.answers = [(503, READY | {"ready": False, "reasons": ["no store"]}), (200, PAGE), (401, {})]
    result = ace("doctor", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "wants a token" in result.output
    assert "not ready: no store" in result.output
    assert "records: none was lost" in result.output
    assert "store" not in result.output.replace("no store", ""), "this machine's may be another's"


@pytest.mark.parametrize("page", ["<html>", ""])
def test_what_is_no_gateway_is_said_to_be_none(ace: Ace, rest: RestGateway, at_home: Path, page: str) -> None:
    rest.answers = [(200, page or None), (200, page or None)]
    result = ace("doctor", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "not an ACE gateway" in result.output


def test_a_variable_that_is_unknown_is_a_problem(ace: Ace, at_home: Path) -> None:
    result = ace("doctor", "--gateway", NOBODY, ACE_PROT="1")
    assert "problem  settings: environment: ACE_PROT is not a setting" in result.output


@pytest.mark.parametrize(("theirs", "off"), [(10.5, 0.0), (10.0, 0.0), (11.0, 0.0), (14.0, 3.0), (7.0, -3.0)])
def test_a_clock_is_off_by_what_the_calls_own_time_cannot_explain(theirs: float, off: float) -> None:
    assert _skew(theirs, 10.0, 11.0) == off
