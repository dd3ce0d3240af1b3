from __future__ import annotations

from typing import Any

import pytest

from probes import suite
from probes.model import Finding, Support
from probes.question import Question
from probes.sampling import INDEPENDENT_DRAWS, NEUTRAL_DEFAULTS
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.served import served

Document = dict[str, Any]
YES, NO, UNKNOWN = Support.YES, Support.NO, Support.UNKNOWN


async def found(question: Question, server: OpenAIServer) -> Finding:
    """What one question, asked over a real socket, finds."""
    with served(server.app) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "SUITES", {"openai": (question,)})
        result = await suite.probe(url, kind="openai", headers={}, time_limit_s=30.0)
    (finding,) = result.findings
    return finding


async def assert_found(question: Question, server: OpenAIServer, support: Support, said: str) -> None:
    finding = await found(question, server)
    assert (finding.support, said in finding.evidence) == (support, True), finding


async def test_draws_that_differ_are_independent() -> None:
    await assert_found(INDEPENDENT_DRAWS, OpenAIServer(), YES, "drew 4 and 4 different tokens")


async def test_a_server_with_a_fixed_seed_draws_the_same_in_every_call() -> None:
    server = OpenAIServer().without("independent_draws")
    await assert_found(INDEPENDENT_DRAWS, server, NO, "drew 1 and 1 different tokens")


async def test_draws_that_differ_within_a_call_only_are_not_independent() -> None:
    """A generator that is seeded anew for every call."""

    def numbered(request: Document, answer: Document) -> None:
        for place, choice in enumerate(answer["choices"]):
            choice["token_ids"] = [place]

    await assert_found(INDEPENDENT_DRAWS, OpenAIServer(spoil=numbered), NO, "in two calls the same ones")


async def test_without_ids_the_texts_are_compared() -> None:
    await assert_found(INDEPENDENT_DRAWS, OpenAIServer().without("return_token_ids"), YES, "drew 4 and 4")


async def test_a_server_that_answers_one_prompt_of_several_says_nothing_of_its_draws() -> None:
    def first_only(request: Document, answer: Document) -> None:
        del answer["choices"][1:]

    await assert_found(INDEPENDENT_DRAWS, OpenAIServer(spoil=first_only), UNKNOWN, "not 4 answers")


async def test_a_server_that_takes_no_list_of_prompts_cannot() -> None:
    await assert_found(INDEPENDENT_DRAWS, OpenAIServer().without("prompt_lists"), NO, "HTTP 400")


async def test_a_server_without_default_penalties_leaves_greedy_alone() -> None:
    await assert_found(NEUTRAL_DEFAULTS, OpenAIServer(), YES, "strong ones change them")


async def test_a_default_penalty_shows_where_the_neutral_one_is_stated() -> None:
    server = OpenAIServer().without("neutral_defaults")
    await assert_found(NEUTRAL_DEFAULTS, server, NO, "repetition_penalty")


async def test_a_server_that_refuses_penalties_has_none() -> None:
    def refuse_the_next(request: Document, answer: Document) -> None:
        if "presence_penalty" in request:
            server.answers["/v1/completions"] = (400, "presence_penalty is not implemented")

    server = OpenAIServer(spoil=refuse_the_next)
    await assert_found(NEUTRAL_DEFAULTS, server, YES, "others are refused")


@pytest.mark.parametrize("able", [True, False])
async def test_a_server_that_does_not_hear_penalties_may_have_any(able: bool) -> None:
    server = OpenAIServer().without("penalties", *([] if able else ["neutral_defaults"]))
    await assert_found(NEUTRAL_DEFAULTS, server, UNKNOWN, "they are not heard")


@pytest.mark.parametrize(("status", "support"), [(400, NO), (503, UNKNOWN)])
async def test_a_server_that_completes_nothing_is_judged_by_its_status(status: int, support: Support) -> None:
    server = OpenAIServer(answers={"/v1/completions": (status, "{}")})
    await assert_found(NEUTRAL_DEFAULTS, server, support, f"HTTP {status}")
    await assert_found(INDEPENDENT_DRAWS, server, support, f"HTTP {status}")
