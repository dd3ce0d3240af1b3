"""What the tables say of the fields of a request (BR-B10)."""

import pytest

from gateway.policy.allowed import why_bypassed
from gateway.policy.fields import active_fields

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def reason(executor: str, field: str, value: object, engine: str = "openai") -> str | None:
    bypassed = why_bypassed(executor, engine, active_fields({"model": "m", field: value}))
    return bypassed[1] if bypassed else None


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("tools", [{"type": "function"}], "tools"),
        ("tool_choice", "required", "tools"),
        ("functions", [{}], "tools"),
        ("response_format", {"type": "json_object"}, "structured_output"),
        ("guided_json", {}, "structured_output"),
        ("structured_outputs", {"regex": "a"}, "structured_output"),
        ("n", 2, "several_answers"),
        ("best_of", 3, "several_answers"),
        ("n", True, "several_answers"),
        ("logit_bias", {"5": 1}, "logit_bias"),
        ("min_p", 0.1, "min_p"),
        ("presence_penalty", 0.5, "penalties"),
        ("frequency_penalty", -1, "penalties"),
        ("repetition_penalty", 1.1, "penalties"),
        ("echo", True, "echo"),
        ("suffix", "}", "suffix"),
        ("prompt_logprobs", 0, "prompt_logprobs"),
        ("use_beam_search", True, "beam_search"),
        ("modalities", ["text", "audio"], "multimodal"),
        ("messages", [{"role": "user", "content": [TEXT, IMAGE]}], "multimodal"),
        ("prompt", ["a", "b"], "prompt_list"),
        ("prompt", [[1, 2], [3]], "prompt_list"),
    ],
)
def test_what_in_engine_may_not_speculate_has_a_reason(field: str, value: object, expected: str) -> None:
    assert reason("in_engine", field, value) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.3),
        ("top_p", 0.9),
        ("seed", 7),
        ("stop", ["x"]),
        ("logprobs", True),
        ("max_tokens", 5),
        ("stream", True),
        ("vllm_xargs", {"ace_mode": "prod"}),
        ("a_field_nobody_knows", 1),
        ("messages", [{"role": "user", "content": [TEXT]}, {"role": "assistant", "content": None}]),
        ("prompt", "a"),
        ("prompt", ["a"]),
        ("prompt", [1, 2, 3]),
        ("prompt", [[1, 2]]),
    ],
)
def test_what_in_engine_may_speculate(field: str, value: object) -> None:
    assert reason("in_engine", field, value) is None


@pytest.mark.parametrize(
    ("engine", "lossless"),
    [
        ("vllm", {"penalties"}),
        ("sglang", set()),
        ("embedded", set()),
        ("openai", set()),
        ("an engine of next year", set()),
    ],
)
def test_an_engine_is_held_to_its_own_rows_and_an_unknown_one_to_all(engine: str, lossless: set[str]) -> None:
    asked = {
        "penalties": ("frequency_penalty", 2.0),
        "min_p": ("min_p", 0.1),
        "logit_bias": ("logit_bias", {"5": 1}),
    }
    found = {name: reason("in_engine", *given, engine) for name, given in asked.items()}
    assert found == {name: None if name in lossless else name for name in asked}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1.5),
        ("top_p", 0.9),
        ("top_k", 40),
        ("stop", ["x"]),
        ("max_tokens", 5),
        ("max_completion_tokens", 5),
        ("stream", True),
        ("stream_options", {"include_usage": True}),
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("cache_salt", "s"),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("add_generation_prompt", False),
        ("continue_final_message", True),
        ("messages", [{"role": "user", "content": [TEXT]}]),
        ("prompt", "a"),
        ("prompt", ["a"]),
        ("prompt", [1, 2, 3]),
        ("presence_penalty", 0),
        ("skip_special_tokens", True),
        ("a_field_nobody_knows", None),
    ],
)
def test_what_the_loop_may_drive(field: str, value: object) -> None:
    assert reason("gateway_loop", field, value) is None


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("frequency_penalty", 2.0, "penalties"),
        ("repetition_penalty", 1.1, "penalties"),
        ("min_p", 0.1, "min_p"),
        ("logit_bias", {"5": 1}, "logit_bias"),
        ("min_tokens", 5, "answer_end"),
        ("stop_token_ids", [5], "answer_end"),
        ("seed", 7, "seed"),
        ("bad_words", ["x"], "logit_processors"),
        ("response_format", {"type": "json_schema"}, "structured_output"),
        ("tool_choice", "required", "tools"),
        ("logprobs", True, "logprobs"),
        ("n", 2, "several_answers"),
        ("prompt", ["a", "b"], "prompt_list"),
        ("messages", [{"role": "user", "content": [TEXT, IMAGE]}], "multimodal"),
        ("vllm_xargs", {"mine": 1}, "extra_args"),
        ("stream_options", {"continuous_usage_stats": True}, "extra_output"),
        ("stream_options", {"a_word_nobody_knows": 1}, "unknown_field"),
        ("a_field_nobody_knows", 1, "unknown_field"),
        ("", 1, "unknown_field"),
    ],
)
def test_what_the_loop_may_not_drive_has_a_reason(field: str, value: object, expected: str) -> None:
    assert reason("gateway_loop", field, value) == expected
