from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import openai
from probes import suite as suite_module
from probes.model import Capability, Finding, Support
from probes.question import MAX_SUITE_TOKENS, Meter, Question, Target
from probes.suite import probe
from probes.wire import Reply
from tests.fakes.openai_server import EVERYTHING, OpenAIServer
from tests.fakes.served import served

Spoil = Callable[[dict[str, Any], dict[str, Any]], None]


async def found(server: OpenAIServer, capability: Capability) -> Finding:
    """What one question of the suite, asked over a real socket, finds."""
    asked = tuple(question for question in openai.SUITE if question.capability is capability)
    with served(server.app) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite_module, "SUITES", {"openai": asked})
        result = await probe(url, kind="openai", headers={}, time_limit_s=30.0)
    (finding,) = result.findings
    return finding


async def assert_found(server: OpenAIServer, capability: Capability, support: Support, said: str) -> None:
    finding = await found(server, capability)
    assert (finding.support, said in finding.evidence) == (support, True), finding


YES, NO, UNKNOWN = Support.YES, Support.NO, Support.UNKNOWN


@pytest.mark.parametrize(
    ("card", "value"),
    [
        ({"max_model_len": 8192}, 8192),
        ({"context_length": 8192}, 8192),
        ({"context_window": 8192}, 8192),
        ({"max_context_length": 8192}, 8192),
        ({"meta": {"n_ctx_train": 8192}}, 8192),
        ({"meta": {"n_ctx": 4096, "n_ctx_train": 8192}}, 4096),
        ({"max_model_len": None, "context_length": 8192}, 8192),
    ],
)
async def test_the_context_length_is_found_in_every_spelling(card: dict[str, Any], value: int) -> None:
    finding = await found(OpenAIServer(card=card), Capability.CONTEXT_LENGTH)
    assert (finding.support, finding.value) == (YES, value)


@pytest.mark.parametrize("card", [{}, {"max_model_len": "8192"}, {"max_model_len": 0}, {"meta": None}])
async def test_a_context_length_that_is_not_said_is_unknown(card: dict[str, Any]) -> None:
    finding = await found(OpenAIServer(card=card), Capability.CONTEXT_LENGTH)
    assert (finding.support, finding.value) == (UNKNOWN, None)


async def test_a_server_that_ignores_stream_does_not_stream() -> None:
    server = OpenAIServer().without("stream")
    await assert_found(server, Capability.STREAMING, NO, "application/json")


async def test_a_stream_of_one_event_says_nothing_about_streaming() -> None:
    def in_one_word(request: dict[str, Any], answer: dict[str, Any]) -> None:
        answer["choices"][0] = {"index": 0, "message": {"content": " all"}, "text": " all"}

    await assert_found(OpenAIServer(spoil=in_one_word), Capability.STREAMING, UNKNOWN, "in one event")


async def test_a_stream_without_text_says_nothing_about_streaming() -> None:
    def silent(request: dict[str, Any], answer: dict[str, Any]) -> None:
        answer["choices"][0] = {"index": 0, "message": {"content": ""}, "text": ""}

    await assert_found(OpenAIServer(spoil=silent), Capability.STREAMING, UNKNOWN, "no text")


async def test_completions_are_asked_where_there_is_no_chat() -> None:
    server = OpenAIServer().without("chat")
    with served(server.app) as url:
        result = await probe(url, kind="openai", headers={}, time_limit_s=30.0)
    assert {finding.support for finding in result.findings} == {YES}


async def test_a_server_without_completions_takes_no_ids() -> None:
    server = OpenAIServer().without("completions")
    with served(server.app) as url:
        result = await probe(url, kind="openai", headers={}, time_limit_s=30.0)
    refused = {finding.capability for finding in result.findings if finding.support is NO}
    assert refused == {
        *(Capability.TOKEN_ID_PROMPTS, Capability.PROMPT_LISTS, Capability.SCORED),
        *(Capability.INDEPENDENT_DRAWS, Capability.NEUTRAL_DEFAULTS, Capability.IN_ENGINE),
    }


async def test_a_stream_without_a_usage_event_has_no_stream_usage() -> None:
    server = OpenAIServer().without("stream_usage")
    await assert_found(server, Capability.STREAM_USAGE, NO, "has token counts")


async def test_no_stream_says_nothing_about_usage_in_streams() -> None:
    server = OpenAIServer().without("stream")
    await assert_found(server, Capability.STREAM_USAGE, UNKNOWN, "no event")


async def test_a_refused_prompt_of_ids_is_a_no() -> None:
    server = OpenAIServer().without("token_id_prompts")
    await assert_found(server, Capability.TOKEN_ID_PROMPTS, NO, "HTTP 400")


def counted(tokens: object) -> Spoil:
    return lambda request, answer: answer["usage"].update(prompt_tokens=tokens)


async def test_ids_that_were_read_as_text_are_a_no() -> None:
    await assert_found(OpenAIServer(spoil=counted(11)), Capability.TOKEN_ID_PROMPTS, NO, "counted as 11")


async def test_ids_that_were_read_as_prompts_are_a_no() -> None:
    def four_choices(request: dict[str, Any], answer: dict[str, Any]) -> None:
        if isinstance(request.get("prompt"), list):
            answer["choices"] = answer["choices"] * 4

    await assert_found(OpenAIServer(spoil=four_choices), Capability.TOKEN_ID_PROMPTS, NO, "4 choice(s)")


async def test_ids_that_were_not_counted_are_unknown() -> None:
    await assert_found(OpenAIServer(spoil=counted(None)), Capability.TOKEN_ID_PROMPTS, UNKNOWN, "no usage")


async def test_llama_cpp_s_500_for_a_prompt_of_ids_is_not_read_as_a_no() -> None:
    """It is a validation message in the form of a broken server."""
    body = '{"error": {"message": "1 validation error: prompt Input should be a valid string"}}'
    server = OpenAIServer(answers={"/v1/completions": (500, body)})
    await assert_found(server, Capability.TOKEN_ID_PROMPTS, UNKNOWN, "Input should be a valid string")
    assert (await found(server, Capability.STREAMING)).support is YES


async def test_a_refused_list_of_prompts_is_a_no() -> None:
    await assert_found(OpenAIServer().without("prompt_lists"), Capability.PROMPT_LISTS, NO, "HTTP 400")


async def test_a_list_that_was_answered_once_is_a_no() -> None:
    def first_only(request: dict[str, Any], answer: dict[str, Any]) -> None:
        answer["choices"] = answer["choices"][:1]

    await assert_found(OpenAIServer(spoil=first_only), Capability.PROMPT_LISTS, NO, "choices [0]")


@pytest.mark.parametrize("strict", [False, True])
async def test_ids_that_were_asked_for_and_not_sent_are_a_no(strict: bool) -> None:
    server = OpenAIServer(strict=strict).without("return_token_ids")
    said = "return_token_ids" if strict else "sent none"
    await assert_found(server, Capability.RETURNED_TOKEN_IDS, NO, said)


async def test_ids_that_are_not_as_many_as_counted_are_a_no() -> None:
    await assert_found(OpenAIServer(spoil=counted(3)), Capability.RETURNED_TOKEN_IDS, NO, "for 3 + 2")


async def test_ids_without_counts_are_unknown() -> None:
    await assert_found(OpenAIServer(spoil=counted(None)), Capability.RETURNED_TOKEN_IDS, UNKNOWN, "no counts")


async def test_ignored_logprobs_are_a_no() -> None:
    await assert_found(OpenAIServer().without("logprobs"), Capability.LOGPROBS, NO, "None")


async def test_an_answer_without_a_choice_says_nothing_about_logprobs() -> None:
    server = OpenAIServer(spoil=lambda request, answer: answer.update(choices=[]))
    await assert_found(server, Capability.LOGPROBS, UNKNOWN, "no choice")


async def test_no_tokenize_route_is_a_no() -> None:
    await assert_found(OpenAIServer().without("tokenize"), Capability.TOKENIZE, NO, "HTTP 404")


async def test_another_engines_tokenize_is_a_no() -> None:
    server = OpenAIServer(answers={"/tokenize": (200, '{"tokens": [{"id": 1, "text": "one"}]}')})
    await assert_found(server, Capability.TOKENIZE, NO, "another shape")


async def test_a_tokenizer_with_another_template_than_the_engine_is_a_no() -> None:
    server = OpenAIServer(spoil=counted(7))
    await assert_found(server, Capability.TOKENIZE, NO, "counted as 7")


async def test_a_tokenizer_that_cannot_be_checked_is_unknown() -> None:
    await assert_found(OpenAIServer(spoil=counted(None)), Capability.TOKENIZE, UNKNOWN, "nothing to check")


@pytest.mark.parametrize("missing", ["tokenize_chat", "chat"])
async def test_a_model_without_chats_is_checked_by_a_text(missing: str) -> None:
    await assert_found(
        OpenAIServer().without(missing), Capability.TOKENIZE, YES, "a text (chats are refused)"
    )


@pytest.mark.parametrize(("able", "support"), [(EVERYTHING, YES), (EVERYTHING - {"chat"}, YES)])
async def test_ids_that_are_spelled_as_the_answer_shows_them(able: frozenset[str], support: Support) -> None:
    await assert_found(OpenAIServer(can=able), Capability.DETOKENIZE, support, "its ids are spelled")


async def test_a_server_without_a_detokenizer_cannot() -> None:
    await assert_found(OpenAIServer().without("detokenize"), Capability.DETOKENIZE, NO, "HTTP 404")


async def test_a_detokenizer_of_another_shape_is_a_no() -> None:
    server = OpenAIServer(answers={"/detokenize": (200, '{"text": "one"}')})
    await assert_found(server, Capability.DETOKENIZE, NO, "another shape")


async def test_a_detokenizer_that_tidies_spaces_is_a_no() -> None:
    """As transformers' tokenizers may (clean_up_tokenization_spaces): answers are streamed untidied."""

    class Tidy(OpenAIServer):
        def text_of(self, ids: list[int]) -> str:
            return super().text_of(ids).replace(" .", ".")

    await assert_found(Tidy(), Capability.DETOKENIZE, NO, 'it tidies spaces: "it \'s a . b , c !"')


async def test_a_server_that_shows_another_text_than_it_generated_is_a_no() -> None:
    """A reasoning parser, for one, takes part of an answer away."""

    def parsed(request: dict[str, Any], answer: dict[str, Any]) -> None:
        answer["choices"][0].update(message={"content": " twenty"})

    await assert_found(OpenAIServer(spoil=parsed), Capability.DETOKENIZE, NO, "shows 'twenty'")


async def test_an_answer_that_ended_is_compared_without_its_end() -> None:
    def ended(request: dict[str, Any], answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        choice["finish_reason"] = "stop"
        choice["token_ids"] = [*choice["token_ids"], 2]

    await assert_found(OpenAIServer(spoil=ended), Capability.DETOKENIZE, YES, "its ids are spelled")


async def test_without_the_answers_ids_there_is_nothing_to_compare() -> None:
    server = OpenAIServer().without("return_token_ids")
    await assert_found(server, Capability.DETOKENIZE, UNKNOWN, "no text with its ids")


class Scripted:
    """A wire whose every answer is the same."""

    def __init__(self, document: object, content_type: str) -> None:
        text = "data: 1" if content_type == "text/event-stream" else ""
        self._reply = Reply(path="/", status=200, content_type=content_type, text=text, document=document)

    async def post(self, path: str, body: object) -> Reply:
        return self._reply

    async def get(self, path: str) -> Reply:
        return self._reply


NAMES = [
    *("choices", "usage", "prompt_tokens", "tokens", "count", "logprobs", "content", "token_ids"),
    *("prompt_token_ids", "metrics", "speculative_decoding", "text", "index", "num_spec_steps"),
    *("prompt", "message", "ace_score", "ends", "finish_reason"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=20,
)


@pytest.mark.slow
@pytest.mark.parametrize("question", openai.SUITE, ids=lambda question: question.capability.value)
@settings(max_examples=60, deadline=None)
@given(document=json_values, content_type=st.sampled_from(["application/json", "text/event-stream", ""]))
async def test_no_answer_makes_a_question_raise(
    question: Question, document: object, content_type: str
) -> None:
    meter = Meter(MAX_SUITE_TOKENS)
    meter.allow(question.tokens)
    wire: Any = Scripted(document, content_type)
    finding = await question.ask(Target(wire, "m", {"meta": document}, ("m",), meter))
    assert finding.capability is question.capability
