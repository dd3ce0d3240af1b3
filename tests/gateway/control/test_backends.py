"""Backends over REST: registered, shown, probed, removed; nothing lost and no key shown."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.policy.ways import WAYS
from probes.model import Finding, Support
from tests.fakes.control import ControlPlane, error_of
from tests.fakes.probing import AWAY, REFUSED, UP
from tests.fakes.tokenizer_files import tokenizer_files

BACKENDS = "/admin/v1/backends"
URL = "http://127.0.0.1:8100"


async def add(control: ControlPlane, **changes: Any) -> Any:
    reply = await control.http.post(BACKENDS, json={"name": "a", "url": URL, **changes})
    assert reply.status_code == 201, reply.text
    return reply.json()


async def test_a_backend_is_registered_probed_and_shown(control: ControlPlane) -> None:
    added = await add(control, url=f"{URL}/v1", kind="embedded", credential=None)
    assert added == {
        "name": "a",
        "url": URL,
        "declared_kind": "embedded",
        "kind": "embedded",
        "state": "up",
        "state_reason": "",
        "credential": None,
        "tokenizer": None,
        "models": ["m"],
        "findings": [
            {"capability": "in_engine", "support": "yes", "evidence": "3 steps reported", "value": None}
        ],
        "executors": [
            {"name": "in_engine", "possible": True, "sentence": "in_engine is possible (3 steps reported)."},
            {
                "name": "gateway_loop",
                "possible": False,
                "sentence": "gateway_loop is not possible yet: the finding streaming is unknown; "
                "run `ace backends probe a` once the server answers.",
            },
        ],
        "calibrations": [],
        "probed_at": control.clock.now,
        "urls": [URL],
        "discovery": "none",
        "declared_by": None,
        "instances": [
            {
                "instance": "",
                "url": URL,
                "kind": "embedded",
                "state": "up",
                "state_reason": "",
                "models": ["m"],
                "findings": added["findings"],
                "probed_at": control.clock.now,
                "started_at": None,
                "version": None,
            }
        ],
        "differing": [],
        "warnings": [],
    }
    assert await control.get(f"{BACKENDS}/a") == added
    assert await control.get(BACKENDS) == {"backends": [added]}


async def test_an_unreachable_backend_is_saved_and_shown_as_down_with_its_evidence(
    control: ControlPlane,
) -> None:
    control.probe.answer = AWAY
    added = await add(control)
    assert (added["state"], added["state_reason"]) == ("down", "no connection")
    assert added["findings"][0]["evidence"] == "no connection"
    assert added["executors"][0]["possible"] is False
    assert await control.get(BACKENDS) == {"backends": [added]}


@pytest.mark.parametrize("kind", ["auto", "openai", "embedded", "vllm", "sglang"])
async def test_every_kind_that_the_command_line_offers_is_taken(control: ControlPlane, kind: str) -> None:
    assert (await add(control, kind=kind))["declared_kind"] == kind


async def test_a_duplicate_name_is_a_conflict(control: ControlPlane) -> None:
    first = await add(control)
    error = error_of(await control.http.post(BACKENDS, json={"name": "a", "url": "http://other"}), 409)
    assert error["code"] == "conflict"
    assert await control.get(BACKENDS) == {"backends": [first]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a b"}, "backend name"),
        ({"url": "http://2852039166/"}, "unusual spelling"),
        ({"url": "file:///etc/passwd"}, "only http"),
        ({"url": "http://x" + "x" * 2000}, "at most 2000 characters"),
        ({"credential": "sk-secret"}, "env:NAME"),
        ({"credential": ["sk-secret"]}, "env:NAME"),
        ({"credential": "env:ACE_ADMIN_TOKEN"}, "never sent"),
        ({"tokenizer": "models/m"}, "absolute path"),
        ({"tokenizer": "/nowhere/at/all"}, "no tokenizer file"),
        ({"tokenizer": "/x" + "x" * 1000}, "at most 1000 characters"),
    ],
)
async def test_what_is_not_allowed_is_refused_and_not_kept(
    control: ControlPlane, changes: dict[str, Any], words: str
) -> None:
    reply = await control.http.post(BACKENDS, json={"name": "a", "url": URL, **changes})
    assert words in error_of(reply, 400)["message"]
    assert "sk-secret" not in reply.text
    assert await control.get(BACKENDS) == {"backends": []}


async def test_a_credential_is_shown_as_the_reference_that_it_is(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", "s3cret-key")
    added = await add(control, credential="env:GPU_KEY")
    assert added["credential"] == "env:GPU_KEY"
    assert "s3cret" not in (await control.http.get(BACKENDS)).text


async def test_a_tokenizer_is_loaded_at_registration_and_shown(control: ControlPlane, tmp_path: Path) -> None:
    folder = str(tokenizer_files(tmp_path / "m"))
    assert (await add(control, tokenizer=folder))["tokenizer"] == folder
    assert control.registry.get("a").whole.tokenizer == folder


async def test_probing_again_shows_what_is_found_now(control: ControlPlane) -> None:
    await add(control)
    control.probe.answer = AWAY
    reply = await control.http.post(f"{BACKENDS}/a/probe")
    assert reply.json()["state"] == "down"
    assert await control.get(f"{BACKENDS}/a") == reply.json()


async def test_health_shows_without_a_probe(control: ControlPlane) -> None:
    await add(control)
    control.health.answer = REFUSED
    await control.registry.check_health_once()
    assert (await control.get(f"{BACKENDS}/a"))["state_reason"] == "connection refused"


async def test_a_removed_backend_is_gone(control: ControlPlane) -> None:
    await add(control)
    reply = await control.http.delete(f"{BACKENDS}/a")
    assert (reply.status_code, reply.content) == (204, b"")
    assert await control.get(BACKENDS) == {"backends": []}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/probe"), ("POST", "/calibrate")]
)
async def test_an_unknown_backend_is_not_found(control: ControlPlane, method: str, path: str) -> None:
    error = error_of(await control.http.request(method, f"{BACKENDS}/nobody{path}"), 404)
    assert error["code"] == "not_found"
    assert "'nobody'" in error["message"]


async def test_what_another_process_registered_is_shown_without_waiting(control: ControlPlane) -> None:
    added = await add(control)
    backend = control.registry.get("a")
    await control.store.backends.remove("a")
    assert await control.get(BACKENDS) == {"backends": []}
    await control.store.backends.add(backend)
    assert await control.get(f"{BACKENDS}/a") == added


NEEDS = next(way.needs for way in WAYS if way.strategy == "fanout")


async def add_drivable(control: ControlPlane) -> None:
    """A plain server that the loop could drive, and a draft runner."""
    findings = tuple(
        Finding(capability=capability, support=Support.YES, evidence="asked") for capability in NEEDS
    )
    control.probe.answer = replace(UP, findings=findings)
    await add(control)
    runners = control.parts["runners"]
    await runners.join(url="http://127.0.0.1:8200", node="n", drafters=["ngram"], version="1")


async def test_a_backend_is_calibrated_and_shows_what_a_step_costs(control: ControlPlane) -> None:
    await add_drivable(control)
    reply = await control.http.post(f"{BACKENDS}/a/calibrate")
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    assert shown["calibrations"] == [
        {
            "model": "m",
            "strategy": "fanout",
            "drafter": "ngram",
            "band": "1",
            "instance": "",
            "measured_at": control.clock.now,
            "expires_at": control.clock.now + 3600,
            "context_tokens": 200,
            "plain_seconds": 0.070,
            "verify_seconds": {"0": 0.073, "8": 0.073},
            "draft_seconds": {"0": 0.002, "8": 0.002},
        }
    ]
    loop = next(executor for executor in shown["executors"] if executor["name"] == "gateway_loop")
    assert "a plain token 70.0 ms" in loop["sentence"]
    assert await control.get(f"{BACKENDS}/a") == shown
    control.clock.advance(3600)
    assert (await control.get(f"{BACKENDS}/a"))["calibrations"] == []


async def test_what_cannot_be_calibrated_says_why(control: ControlPlane) -> None:
    await add(control)
    error = error_of(await control.http.post(f"{BACKENDS}/a/calibrate"), 409)
    assert "gateway_loop is not possible yet" in error["message"]


async def test_a_calibration_that_fails_is_told(control: ControlPlane) -> None:
    await add_drivable(control)
    control.meter.failure = "the draft runner was lost"
    error = error_of(await control.http.post(f"{BACKENDS}/a/calibrate"), 503)
    assert error["code"] == "calibration_failed"
    assert "the draft runner was lost" in error["message"]
