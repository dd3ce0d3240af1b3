import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.model import Workload
from gateway.policy.workload import classify

PASSAGE = "The lighthouse was built in 1854. It stands on a rock. " * 20

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "text", "type", "messages", "prompt"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)


def asked(text: object, system: str | None = None) -> Workload:
    messages: list[object] = [{"role": "system", "content": system}] if system else []
    return classify("chat", {"messages": [*messages, {"role": "user", "content": text}]})


@pytest.mark.parametrize(
    ("text", "workload"),
    [
        ("How are you today?", Workload.CHAT),
        ("What should I cook with rice?", Workload.CHAT),
        ("What is a good question to ask a document lawyer", Workload.CHAT),
        ("Why is this so?\n```python\nx = 1\n```", Workload.CODE),
        ("def add(a, b):\n    return a - b\n", Workload.CODE),
        ("class Point(Base):\n    pass\nwhat is this", Workload.CODE),
        ("Fix this function: add(a, b) returns a - b", Workload.CODE),
        ("Please rename the method foo to bar.", Workload.CODE),
        ("Classes at this school are large, from what I hear", Workload.CHAT),
        (f"Summarise the following passage.\n\n{PASSAGE}", Workload.SUMMARISE),
        (f"{PASSAGE}\nGive me a one line summary.", Workload.SUMMARISE),
        ("Summarize: cats are nice", Workload.SUMMARISE),
        (f"Context: {PASSAGE}\nQuestion: When was it built?", Workload.RAG),
        (f"Answer from the passage below, quoting it.\n{PASSAGE}", Workload.RAG),
        (f"<document>{PASSAGE}</document>\nWhen was it built?", Workload.RAG),
        ("Write a short story about a fox", Workload.CREATIVE),
        ("Compose a haiku on rain", Workload.CREATIVE),
    ],
)
def test_a_users_words(text: str, workload: Workload) -> None:
    assert asked(text) is workload
    assert asked([{"type": "text", "text": text}]) is workload
    assert classify("completions", {"prompt": text}) is workload
    assert classify("completions", {"prompt": [text]}) is workload


def test_tools_and_response_formats_are_structured_whatever_the_words() -> None:
    messages = [{"role": "user", "content": "Summarise this"}]
    assert classify("chat", {"messages": messages, "tools": [{}]}) is Workload.STRUCTURED
    schema = {"type": "json_schema", "json_schema": {}}
    assert classify("chat", {"messages": messages, "response_format": schema}) is Workload.STRUCTURED
    plain = {"type": "text"}
    assert classify("chat", {"messages": messages, "response_format": plain}) is Workload.SUMMARISE


def test_the_system_message_counts() -> None:
    assert asked(PASSAGE, system="You summarise what the user sends.") is Workload.SUMMARISE


def test_the_last_user_message_counts_and_not_earlier_ones() -> None:
    messages = [
        {"role": "user", "content": "Write a poem"},
        {"role": "assistant", "content": "```python\n```"},
        {"role": "user", "content": "Thanks!"},
    ]
    assert classify("chat", {"messages": messages}) is Workload.CHAT


def test_instructions_at_either_end_of_a_long_prompt_are_seen_and_its_middle_is_not() -> None:
    filler = "word " * 100_000
    assert asked(f"Summarise this: {filler}") is Workload.SUMMARISE
    assert asked(f"{filler} Summarise this.") is Workload.SUMMARISE
    assert asked(f"{filler} Summarise this. {filler}") is Workload.CHAT


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": []}, {"messages": [{"role": "tool", "content": "x"}]}, {"prompt": [1, 2, 3]}, [], None],
)
def test_what_has_no_words_is_other(body: object) -> None:
    assert classify("chat", body) is Workload.OTHER
    assert classify("completions", body) is Workload.OTHER


def test_other_endpoints_are_other() -> None:
    assert classify("other", {"messages": [{"role": "user", "content": "hi"}]}) is Workload.OTHER


@given(st.sampled_from(["chat", "completions"]), json_values)
def test_no_body_makes_it_raise(endpoint: str, body: object) -> None:
    assert classify("chat" if endpoint == "chat" else "completions", body) in Workload


@given(st.text())
def test_no_words_make_it_raise(text: str) -> None:
    assert asked(text, system=text) in Workload
