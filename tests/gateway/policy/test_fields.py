import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.fields import active_fields, is_structured

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


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
    ("body", "names"),
    [
        ({"messages": [{"role": "user", "content": [TEXT, IMAGE]}]}, {"messages", "multimodal"}),
        ({"prompt": ["a", "b"]}, {"prompt", "prompt_list"}),
        ({"prompt": ["a"]}, {"prompt"}),
        ({"prompt": [1, 2]}, {"prompt"}),
        ({"prompt": [[1, 2]]}, {"prompt"}),
        ({"stream_options": {"include_usage": True}}, {"stream_options"}),
        (
            {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            {"stream_options", "stream_options.continuous_usage_stats"},
        ),
        ({"stream_options": {"continuous_usage_stats": False}}, {"stream_options"}),
    ],
)
def test_what_no_field_name_says_has_a_name_of_its_own(body: dict[str, object], names: set[str]) -> None:
    assert active_fields(body) == names


def test_tools_and_structured_output_give_the_answer_a_form() -> None:
    assert is_structured(active_fields({"tools": [{}]}))
    assert is_structured(active_fields({"response_format": {"type": "json_object"}}))
    assert not is_structured(active_fields({"n": 2}))


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["messages", "prompt", "n", "tools", "stream_options"]) | st.text(), json_values
    )
)
def test_no_values_make_it_raise(body: dict[str, object]) -> None:
    named = {name for name in active_fields(body) if not name.startswith("stream_options.")}
    assert named <= {*body, "multimodal", "prompt_list"}
