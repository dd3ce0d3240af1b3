import json
from typing import Any

from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace

DOWN: dict[str, Any] = {
    "name": "gpu/1",
    "url": "http://gpu",
    "declared_kind": "auto",
    "kind": "openai",
    "state": "down",
    "state_reason": "connection refused",
    "credential": "env:GPU_KEY",
    "tokenizer": "/models/m1",
    "models": ["m1", "m2"],
    "findings": [
        {"capability": "streaming", "support": "unknown", "evidence": "no [answer]", "value": None},
    ],
    "executors": [
        {"name": "in_engine", "possible": False, "sentence": "The server does not know vllm_xargs."}
    ],
    "probed_at": 0.5,
    "urls": ["http://gpu"],
    "discovery": "none",
    "declared_by": None,
    "instances": [],
    "differing": [],
    "warnings": [],
}


def test_add_sends_what_was_given(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(201, DOWN)]
    args = ("add", "gpu/1", "http://gpu/v1", "--kind", "vllm", "--credential", "env:GPU_KEY")
    more = ("--tokenizer", "/models/m1", "--gateway", rest.url)
    assert ace("backends", *args, *more).exit_code == 0
    (asked,) = rest.asked
    assert (asked.method, asked.path) == ("POST", "/admin/v1/backends")
    assert asked.body == {
        "name": "gpu/1",
        "url": "http://gpu/v1",
        "kind": "vllm",
        "credential": "env:GPU_KEY",
        "tokenizer": "/models/m1",
    }


def test_add_takes_only_known_kinds(ace: Ace, rest: RestGateway) -> None:
    result = ace("backends", "add", "a", "http://a", "--kind", "tgi", "--gateway", rest.url)
    assert result.exit_code == 2
    assert "'auto'" in result.stderr
    assert rest.asked == []


def test_a_backend_that_is_down_is_shown_with_its_reason_findings_and_executors(
    ace: Ace, rest: RestGateway
) -> None:
    rest.answers = [(200, DOWN)]
    result = ace("backends", "show", "gpu/1", "--gateway", rest.url)
    assert result.exit_code == 0
    assert rest.asked[0].path == "/admin/v1/backends/gpu%2F1"
    assert "down: connection refused" in result.stdout
    assert "no [answer]" in result.stdout
    assert "m1, m2" in result.stdout
    assert "/models/m1" in result.stdout
    assert "in_engine: not possible. The server does not know vllm_xargs." in result.stdout


def test_probe_asks_for_a_new_look(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, DOWN | {"probed_at": None, "credential": None, "tokenizer": None})]
    assert "never" in ace("backends", "probe", "b", "--gateway", rest.url).stdout
    assert (rest.asked[0].method, rest.asked[0].path) == ("POST", "/admin/v1/backends/b/probe")


def test_calibrate_asks_for_a_measurement_and_shows_what_came_of_it(ace: Ace, rest: RestGateway) -> None:
    sentence = "gateway_loop is possible (a plain token 70.0 ms)."
    loop = {"name": "gateway_loop", "possible": True, "sentence": sentence}
    rest.answers = [(200, DOWN | {"executors": [loop]})]
    assert sentence in ace("backends", "calibrate", "gpu/1", "--gateway", rest.url).stdout
    assert (rest.asked[0].method, rest.asked[0].path) == ("POST", "/admin/v1/backends/gpu%2F1/calibrate")


def test_json_is_the_rest_answer(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, DOWN), (200, {"backends": [DOWN]})]
    shown = ace("backends", "show", "b", "--json", "--gateway", rest.url)
    listed = ace("backends", "list", "--json", "--gateway", rest.url)
    assert json.loads(shown.stdout) == DOWN
    assert json.loads(listed.stdout) == {"backends": [DOWN]}


def test_the_list_has_one_line_for_each_backend(ace: Ace, rest: RestGateway) -> None:
    long_reason = "very " * 60 + "down"
    rest.answers = [(200, {"backends": [DOWN, DOWN | {"name": "b2", "state_reason": long_reason}]})]
    lines = ace("backends", "list", "--gateway", rest.url).stdout.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("b2")
    assert long_reason in lines[2]


def test_an_empty_list_says_how_to_register(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"backends": []})]
    assert "ace backends add NAME URL" in ace("backends", "list", "--gateway", rest.url).stdout


def test_remove_deletes(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(204, None), (204, None)]
    assert ace("backends", "remove", "b", "--gateway", rest.url).stdout == "Removed b.\n"
    as_json = ace("backends", "remove", "b", "--json", "--gateway", rest.url)
    assert json.loads(as_json.stdout) == {"removed": "b"}
    assert (rest.asked[0].method, rest.asked[0].path) == ("DELETE", "/admin/v1/backends/b")


def instance(place: str, state: str, support: str) -> dict[str, Any]:
    return {
        "instance": place,
        "url": place,
        "kind": "openai",
        "state": state,
        "state_reason": "" if state == "up" else "connection refused",
        "models": ["m1"],
        "findings": [{"capability": "in_engine", "support": support, "evidence": "asked", "value": None}],
        "probed_at": 0.5,
        "started_at": 1000.0,
        "version": "0.32.0",
    }


PAIR = DOWN | {
    "name": "pair",
    "state": "up",
    "state_reason": "",
    "urls": ["http://a", "http://b"],
    "declared_by": "/etc/fleet.yaml",
    "instances": [instance("http://a", "up", "yes"), instance("http://b", "down", "no")],
    "differing": ["in_engine"],
    "warnings": ["backend pair@http://a: the URL answers as one process and another in turns."],
}


def test_several_urls_and_names_are_sent_as_such(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(201, PAIR), (201, PAIR)]
    ace("backends", "add", "pair", "http://a", "http://b", "--gateway", rest.url)
    ace("backends", "add", "pods", "http://llama.svc", "--dns", "--gateway", rest.url)
    assert [asked.body for asked in rest.asked] == [
        {"name": "pair", "urls": ["http://a", "http://b"], "kind": "auto"},
        {"name": "pods", "url": "http://llama.svc", "kind": "auto", "discovery": "dns"},
    ]


def test_each_instance_is_shown_with_what_they_differ_in(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, PAIR)]
    lines = ace("backends", "show", "pair", "--gateway", rest.url).stdout.splitlines()
    assert "backend:     pair at http://a, http://b" in lines
    assert "state:       up (1 of 2)" in lines
    assert "declared by: /etc/fleet.yaml" in lines
    table = [line.split() for line in lines if line.startswith(("instance", "http://"))]
    assert table[0] == ["instance", "state", "version", "models", "in_engine", "reason"]
    assert table[1][:5] == ["http://a", "up", "0.32.0", "m1", "yes"]
    assert table[2] == ["http://b", "down", "0.32.0", "m1", "no", "connection", "refused"]
    assert lines[-1].startswith("warning: backend pair@http://a: the URL answers as one process")


def test_warnings_stand_below_the_list(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"backends": [PAIR]})]
    lines = ace("backends", "list", "--gateway", rest.url).stdout.splitlines()
    assert "up (1 of 2)" in lines[1]
    assert lines[2].startswith("warning: ")
