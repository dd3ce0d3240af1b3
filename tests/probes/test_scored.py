from __future__ import annotations

from typing import Any

import pytest

from probes import suite
from probes.model import Finding, Support
from probes.scored import SCORED
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served

Document = dict[str, Any]


async def found(server: OpenAIServer) -> Finding:
    """What the one question, asked over a real socket, finds."""
    with served(server.app) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "SUITES", {"openai": (SCORED,)})
        result = await suite.probe(url, kind="openai", headers={}, time_limit_s=30.0)
    (finding,) = result.findings
    return finding


async def test_an_engine_whose_scores_are_its_own_choices_has_the_capability() -> None:
    finding = await found(OpenAIServer())
    assert finding.support is Support.YES
    assert "greedily and drawing from a seed" in finding.evidence


@pytest.mark.parametrize(("strict", "said"), [(False, "is ignored"), (True, "not permitted: ")])
async def test_a_server_that_does_not_know_the_word_is_asked_once(strict: bool, said: str) -> None:
    server = OpenAIServer(strict=strict).without("scored", "in_engine")
    finding = await found(server)
    assert (finding.support, said in finding.evidence) == (Support.NO, True), finding
    assert len(server.asked) == 1


def score_of(answer: Document) -> Document:
    score: Document = answer.get("ace_score", {"choices": [], "ends": []})
    return score


def echoes_the_draft(request: Document, answer: Document) -> None:
    """Accepts whatever is proposed."""
    if draft := request.get("vllm_xargs", {}).get("ace_score"):
        score_of(answer)["choices"][:draft] = request["prompt"][-draft:]


def draws_anew(request: Document, answer: Document) -> None:
    """Its samples are not those of plain decoding."""
    if request["temperature"]:
        score = score_of(answer)
        score["choices"] = [token + 1 for token in score["choices"]]


def chooses_greedily(request: Document, answer: Document) -> None:
    if request["temperature"]:
        score = score_of(answer)
        score["choices"] = [9 for _ in score["choices"]]


def one_choice_too_few(request: Document, answer: Document) -> None:
    del score_of(answer)["choices"][1:]


def words_for_ends(request: Document, answer: Document) -> None:
    score = score_of(answer)
    score["ends"] = ["no" for _ in score["ends"]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (echoes_the_draft, "a draft that is wrong: chose"),
        (draws_anew, "drawing from a seed, a draft that is right: chose"),
        (chooses_greedily, "drawing from a seed, a draft that is right: chose"),
        (one_choice_too_few, "no 3 choices and ends"),
        (words_for_ends, "no 1 choices and ends"),
    ],
)
async def test_an_engine_whose_scores_are_something_else_has_not_the_capability(
    spoil: Any, said: str
) -> None:
    finding = await found(OpenAIServer(spoil=spoil))
    assert (finding.support, said in finding.evidence) == (Support.NO, True), finding


async def test_without_the_ids_of_plain_decoding_there_is_nothing_to_compare() -> None:
    finding = await found(OpenAIServer().without("return_token_ids"))
    assert (finding.support, "to compare with" in finding.evidence) == (Support.UNKNOWN, True)


async def test_an_engine_that_fails_in_between_is_unknown() -> None:
    server = OpenAIServer()

    def stop(request: Document, answer: Document) -> None:
        if request["temperature"]:
            server.answers["/v1/completions"] = (503, "{}")

    server.spoil = stop
    finding = await found(server)
    assert (finding.support, "HTTP 503" in finding.evidence) == (Support.UNKNOWN, True)
