from typing import Any

import pytest

import gateway
from gateway.cli.checks import CHECKS, OK, PROBLEM, WARNING, Diagnosis, Gathered, diagnose

STORE = {
    "label": "sqlite:///ace.db", "error": None, "revision": "0006", "newest": "0006",
    "bytes_used": 4096, "bytes_free": 2**34,
}  # fmt: skip
INSTALLATION = {
    "version": gateway.__version__,
    "store": STORE,
    "spans": {"url": None, "error": None},
    "now": 1000.0,
    "recent_lines": [],
}
POLICY = {
    "source": "file", "path": "/p.yaml", "revision": "abc", "loaded_at": 0.0, "error": None,
    "policy": {"rules": [{"name": "all", "mode": "prod"}, {"name": "more", "mode": "shadow"}]},
}  # fmt: skip
BACKEND = {
    "name": "b", "state": "up", "state_reason": "", "probed_at": 0.0,
    "executors": [{"name": "in_engine", "possible": True, "sentence": "in_engine is possible."}],
}  # fmt: skip
RUNNER = {
    "url": "http://r", "node": "n1", "version": gateway.__version__, "drafters": ["ngram"],
    "live": True, "seen_at": 0.0,
}  # fmt: skip
PAGE = '# TYPE ace_records_dropped_total counter\nace_records_dropped_total{sink="store"} 0.0\n'


def healthy(**changes: Any) -> Gathered:
    answers: dict[str, Any] = {
        "ready": {"ready": True, "reasons": [], "warnings": []},
        "installation": INSTALLATION,
        "policy": POLICY,
        "overlays": [],
        "backends": [BACKEND],
        "runners": [RUNNER],
        "metrics": PAGE,
        "skew_s": 0.1,
        "policy_path": "/p.yaml",
    }
    return Gathered(**answers | changes)


def about(part: str, found: list[Diagnosis]) -> Diagnosis:
    """The worst that is said of a part."""
    said = [diagnosis for diagnosis in found if diagnosis.part == part]
    assert said, f"nothing about {part}: {found}"
    return max(said, key=lambda diagnosis: (OK, WARNING, PROBLEM).index(diagnosis.state))


def test_a_healthy_gateway_has_nothing_to_do() -> None:
    found = diagnose(healthy())
    assert {diagnosis.state for diagnosis in found} == {OK}
    assert len(found) == len(CHECKS) + 1  # the policy file that was named, and the policy in force
    assert not any(diagnosis.next_command for diagnosis in found)


Problem = tuple[dict[str, Any], str, str, str, str]
"""Changed answers, and what is to be said: part, state, cause and next command."""


def of_store(**changes: Any) -> dict[str, Any]:
    return {"installation": INSTALLATION | {"store": STORE | changes}}


def of_spans(error: str) -> dict[str, Any]:
    return {"installation": INSTALLATION | {"spans": {"url": "http://c:4318", "error": error}}}


def of_ready(*, ready: bool, reasons: tuple[str, ...] = (), warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"ready": {"ready": ready, "reasons": reasons, "warnings": warnings}}


IMPOSSIBLE = {"executors": [{"name": "x", "possible": False, "sentence": "x lacks y."}]}
DOWN = {"state": "down", "state_reason": "refused"}
REFUSED = POLICY | {"error": "p.yaml:7: no"}

KILL = {"id": "1a", "kind": "kill", "author": "ann", "reason": "too slow", "created_at": 0.0}

PROBLEMS: dict[str, Problem] = {
    "a variable": ({"settings_error": "ACE_PROT is unknown."}, "settings", PROBLEM, "ACE_PROT", "--help"),
    "a policy file": ({"policy_error": "p.yaml:3: no"}, "policy file", PROBLEM, "p.yaml:3", "policy check"),
    "a newer policy": ({"policy": REFUSED}, "policy", PROBLEM, "p.yaml:7", "ace policy check /p.yaml"),
    "no policy": ({"policy": POLICY | {"source": "default"}}, "policy", WARNING, "is off", "ace init"),
    "a kill": ({"overlays": [KILL]}, "overlays", WARNING, "kill by ann", "ace kill --lift"),
    "a kill by file": ({"overlays": [KILL | {"id": "switch"}]}, "overlays", WARNING, "kill by ann", "rm "),
    "a store that is down": (of_store(error="disk I/O error"), "store", PROBLEM, "disk I/O", "df -h"),
    "a store of old": (of_store(revision="0001"), "store", PROBLEM, "needs 0006", "ace serve"),
    "a disk with little room": (of_store(bytes_free=2**29), "store", WARNING, "512 MiB", "df -h"),
    "a full disk": (of_store(bytes_free=1), "store", PROBLEM, "1 B free", "df -h"),
    "no gateway": ({"gateway_error": "No gateway."}, "gateway", PROBLEM, "No gateway", "ace serve"),
    "no token": ({"token_error": "It wants a token."}, "gateway", PROBLEM, "wants a token", "ACE_TOKEN"),
    "not ready": (of_ready(ready=False, reasons=("no keys",)), "gateway", PROBLEM, "no keys", "ace doctor"),
    "a warning": (of_ready(ready=True, warnings=("away",)), "gateway", WARNING, "away", "support-bundle"),
    "no backend": ({"backends": []}, "backends", PROBLEM, "none is registered", "ace backends add"),
    "down": ({"backends": [BACKEND | DOWN]}, "backend b", PROBLEM, "down: refused", "ace backends probe b"),
    "no prod": ({"backends": [BACKEND | IMPOSSIBLE]}, "backend b", WARNING, "x lacks y.", "backends show b"),
    "no runner": ({"runners": []}, "draft runners", WARNING, "no shadow request", "ace draft-runner"),
    "a runner that is gone": (
        {"runners": [RUNNER | {"live": False}]},
        "draft runner http://r",
        WARNING,
        "last heard of",
        "ace draft-runner",
    ),
    "a runner of another version": (
        {"runners": [RUNNER | {"version": "0.0"}]},
        "draft runner http://r",
        WARNING,
        "version 0.0",
        "pip install",
    ),
    "records that were lost": (
        {"metrics": PAGE.replace("0.0", "3.0")},
        "records",
        WARNING,
        "3 records were lost by store",
        "df -h",
    ),
    "spans that nobody takes": (of_spans("it answers HTTP 401"), "spans", PROBLEM, "HTTP 401", "curl"),
    "a clock": ({"skew_s": -61.0}, "clock", WARNING, "61.0 s", "timedatectl"),
    "another version": (
        {"installation": INSTALLATION | {"version": "9.9"}},
        "installation",
        WARNING,
        "9.9",
        "ace-gateway==9.9",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_problem_has_its_cause_and_a_next_command(name: str) -> None:
    changes, part, state, cause, command = PROBLEMS[name]
    worst = about(part, diagnose(healthy(**changes)))
    assert worst.state == state
    assert cause in worst.cause
    assert command in worst.next_command


def test_every_problem_and_warning_says_what_to_type() -> None:
    for changes, *_ in PROBLEMS.values():
        for diagnosis in diagnose(healthy(**changes)):
            assert bool(diagnosis.next_command) == (diagnosis.state != OK), diagnosis


def test_without_a_gateway_only_what_is_here_is_judged() -> None:
    found = diagnose(Gathered(gateway_error="No gateway answers.", store=STORE))
    assert [diagnosis.part for diagnosis in found] == ["installation", "settings", "gateway", "store"]
    assert "were not looked at" in about("gateway", found).cause


def test_a_policy_error_is_said_once() -> None:
    warned = {"ready": True, "reasons": [], "warnings": ["p.yaml:7: no"]}
    found = diagnose(healthy(policy=POLICY | {"error": "p.yaml:7: no"}, ready=warned))
    assert len([diagnosis for diagnosis in found if "p.yaml:7" in diagnosis.cause]) == 1


def test_a_gateway_that_is_off_needs_no_runner_and_no_executor() -> None:
    off = POLICY | {"policy": {"rules": []}}
    found = diagnose(healthy(policy=off, runners=[], backends=[BACKEND | {"executors": []}]))
    assert about("draft runners", found).state == OK
    assert about("backend b", found).state == OK
