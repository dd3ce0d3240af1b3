from __future__ import annotations

from typing import Any

import pytest

from probes import suite
from probes.in_engine import IN_ENGINE, LONG, RUNS, SHORT
from probes.model import Finding, Support
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served

pytestmark = pytest.mark.slow

Document = dict[str, Any]


async def found(server: OpenAIServer) -> Finding:
    """What the one question, asked over a real socket, finds."""
    with served(server.app) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "SUITES", {"openai": (IN_ENGINE,)})
        result = await suite.probe(url, kind="openai", headers={}, time_limit_s=30.0)
    (finding,) = result.findings
    return finding


def asks_of(server: OpenAIServer) -> list[Document]:
    return [body for _, body in server.asked if "vllm_xargs" in body]


async def test_an_engine_that_does_as_it_is_told_has_the_capability() -> None:
    server = OpenAIServer()
    finding = await found(server)
    assert finding.support is Support.YES
    assert f"ace_k={LONG}" in finding.evidence
    assert f"ace_k={SHORT}" in finding.evidence
    assert "drafts accepted" in finding.evidence
    assert [body["vllm_xargs"].get("ace_mode") for body in asks_of(server)] == [
        "prod",
        "off",
        "shadow",
        "prod",
    ]


@pytest.mark.parametrize(
    ("version", "drafters"),
    [
        ({"version": "1", "drafters": ["ngram", "suffix"]}, ["ngram", "suffix"]),
        ({"version": "1", "drafters": []}, []),
        ({"version": "1", "drafters": "ngram"}, None),
        ({"version": "1", "drafters": ["ngram", 5]}, None),
        ({"version": "1"}, None),
        (None, None),
    ],
)
async def test_the_drafters_that_the_engine_lists_are_the_findings_value(
    version: Document | None, drafters: list[str] | None
) -> None:
    finding = await found(OpenAIServer(version=version))
    assert (finding.support, finding.value) == (Support.YES, drafters)


async def test_an_engine_whose_version_is_not_to_be_had_has_the_capability_all_the_same() -> None:
    finding = await found(OpenAIServer(answers={"/version": (200, "<html>")}))
    assert (finding.support, finding.value) == (Support.YES, None)


@pytest.mark.parametrize(("strict", "said"), [(False, "is ignored"), (True, "not permitted: ")])
async def test_a_server_that_does_not_know_the_contract_is_asked_once(strict: bool, said: str) -> None:
    server = OpenAIServer(strict=strict).without("in_engine", "return_token_ids")
    finding = await found(server)
    assert finding.support is Support.NO
    assert said in finding.evidence
    assert len(asks_of(server)) == 1


def report_of(answer: Document) -> Document:
    report: Document = answer["metrics"]["speculative_decoding"]
    return report


def words_of(request: Document) -> Document:
    words: Document = request.get("vllm_xargs", {})
    return words


def speculates_unasked(request: Document, answer: Document) -> None:
    if not words_of(request):
        answer["metrics"]["speculative_decoding"] = {"num_spec_steps": 1}


def speculates_in_off(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_mode") == "off":
        answer["metrics"]["speculative_decoding"] = {"num_spec_steps": 1}


def another_text_in_prod(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_mode") == "prod":
        answer["choices"][0]["text"] += "!"


def other_ids_in_shadow(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_mode") == "shadow":
        answer["choices"][0]["token_ids"][-1] += 1


def no_report_in_shadow(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_mode") == "shadow":
        answer["metrics"] = {}


def always_long(request: Document, answer: Document) -> None:
    """Reports what it drafted for the long lookahead whatever it was told."""
    if words_of(request).get("ace_k") == SHORT:
        answer["metrics"]["speculative_decoding"] = {
            "num_spec_steps": 2,
            "num_draft_tokens": 8,
            "num_accepted_draft_tokens": 6,
            "acceptance_histogram": [0, 0, 1, 0, 1],
        }


def more_accepted_than_drafted(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_k"):
        report_of(answer)["num_accepted_draft_tokens"] = 10_000


def a_step_too_many(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_k"):
        report_of(answer)["num_spec_steps"] += 1


def another_histogram(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_k"):
        report_of(answer)["acceptance_histogram"][0] += 1


def no_histogram(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_k"):
        del report_of(answer)["acceptance_histogram"]


def words_for_counts(request: Document, answer: Document) -> None:
    if words_of(request).get("ace_k"):
        report_of(answer)["num_spec_steps"] = "two"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (speculates_unasked, "no ace_mode is speculated"),
        (speculates_in_off, "ace_mode=off is speculated"),
        (another_text_in_prod, "no ace_mode 'green"),
        (other_ids_in_shadow, "ace_mode=shadow ace_k=4 ["),
        (no_report_in_shadow, "ace_mode=shadow ace_k=4 reports no counts"),
        (always_long, "more drafts than K: ace_mode=prod ace_k=1"),
        (more_accepted_than_drafted, "contradictory counts"),
        (a_step_too_many, "contradictory counts"),
        (another_histogram, "contradictory counts"),
        (no_histogram, "no acceptance_histogram"),
        (words_for_counts, "reports no counts"),
    ],
)
async def test_an_engine_that_breaks_the_contract_has_not_the_capability(spoil: Any, said: str) -> None:
    finding = await found(OpenAIServer(spoil=spoil))
    assert (finding.support, said in finding.evidence) == (Support.NO, True), finding


def reports(steps: int, drafted: int) -> Any:
    """An engine whose every report is this one, nothing of it accepted."""

    def spoil(request: Document, answer: Document) -> None:
        if words_of(request).get("ace_k"):
            answer["metrics"]["speculative_decoding"] = {
                "num_spec_steps": steps,
                "num_draft_tokens": drafted,
                "num_accepted_draft_tokens": 0,
                "acceptance_histogram": [steps, 0],
            }

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said"), [(reports(0, 0), "nothing was drafted"), (reports(3, 3), "too short to tell K=4")]
)
async def test_what_the_drafts_do_not_show_is_unknown(spoil: Any, said: str) -> None:
    finding = await found(OpenAIServer(spoil=spoil))
    assert (finding.support, said in finding.evidence) == (Support.UNKNOWN, True), finding


async def test_an_engine_that_fails_in_between_is_unknown() -> None:
    server = OpenAIServer()

    def stop(request: Document, answer: Document) -> None:
        if words_of(request).get("ace_mode") == "off":
            server.answers["/v1/completions"] = (503, "{}")

    server.spoil = stop
    finding = await found(server)
    assert (finding.support, "HTTP 503" in finding.evidence) == (Support.UNKNOWN, True)


def test_every_mode_of_the_contract_is_asked_for() -> None:
    assert {run.words.get("ace_mode") for run in RUNS} == {None, "off", "shadow", "prod"}
