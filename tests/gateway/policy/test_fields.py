import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.decide import EXECUTORS
from gateway.policy.fields import BYPASSED_FIELDS, active_fields, is_structured, why_bypassed

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def test_every_executor_has_its_table() -> None:
    assert set(BYPASSED_FIELDS) == set(EXECUTORS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("best_of", 1),
        ("tools", []),
        ("tool_choice", "none"),
        ("presence_penalty", 0),
        ("frequency_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("logit_bias", {}),
        ("min_p", 0),
        ("response_format", {"type": "text"}),
        ("echo", False),
        ("stream", False),
        ("temperature", 1),
        ("anything_at_all", None),
    ],
)
def test_a_documented_default_is_not_active(field: str, value: object) -> None:
    assert active_fields({field: value}) == frozenset()


@pytest.mark.parametrize(
    ("field", "value", "reason"),
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
def test_what_in_engine_may_not_speculate_has_a_reason(field: str, value: object, reason: str) -> None:
    bypassed = why_bypassed("in_engine", active_fields({"model": "m", field: value}))
    assert bypassed is not None
    assert bypassed[1] == reason


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
    assert why_bypassed("in_engine", active_fields({field: value})) is None


def test_tools_and_structured_output_give_the_answer_a_form() -> None:
    assert is_structured(active_fields({"tools": [{}]}))
    assert is_structured(active_fields({"response_format": {"type": "json_object"}}))
    assert not is_structured(active_fields({"n": 2}))


@given(
    st.dictionaries(
        st.sampled_from(["messages", "prompt", "n", "tools", "logit_bias"]) | st.text(), json_values
    )
)
def test_no_values_make_it_raise(body: dict[str, object]) -> None:
    assert active_fields(body) <= {*body, "multimodal", "prompt_list"}
