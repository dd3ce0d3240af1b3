from __future__ import annotations

from typing import Any

import pytest

from gateway.shadow.parse import ReadAnswer, read_answer
from gateway.shadow.reasons import Skipped
from tests.fakes.finished import USAGE, chat_answer, chat_request, chunk, finished, stream

COMPLETION = {"choices": [{"index": 0, "text": "a b c", "finish_reason": "length"}], "usage": USAGE}
USAGE_CHUNK = {"choices": [], "usage": USAGE, "metrics": {"generation_time_ms": 40.0}}
SAID = (
    chunk(role="assistant", content=""),
    chunk("a b"),
    chunk(" c"),
    chunk(finish_reason="length"),
    USAGE_CHUNK,
)


def completion(prompt: object = "say it", **fields: Any) -> ReadAnswer:
    request = {"model": "m", "prompt": prompt, **fields}
    return read_answer(finished(COMPLETION, request=request, endpoint="completions"))


def why_skipped(answer: object, **changes: Any) -> str:
    with pytest.raises(Skipped) as skipped:
        read_answer(finished(answer, **changes))  # type: ignore[arg-type] # some answers are nonsense on purpose
    return skipped.value.reason.value


def text_of(read: ReadAnswer) -> object:
    return read.text_payload and read.text_payload["prompt"]


def test_a_chat_answer_is_read() -> None:
    read = read_answer(finished(chat_answer(metrics={"generation_time_ms": 40.0})))
    assert read.text_payload == {"model": "m", "prompt": "a b c", "add_special_tokens": False}
    assert read.prompt_payload == {
        "model": "m",
        "messages": [{"role": "user", "content": "say it"}],
        "add_generation_prompt": True,
    }
    assert (read.prompt_tokens, read.completion_tokens) == (4, 3)
    assert read.numbers.decode_seconds == 0.04
    assert not read.may_end_unseen


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_reads_like_the_whole_answer(line_end: bytes) -> None:
    read = read_answer(finished(stream(*SAID, line_end=line_end)))
    assert read == read_answer(finished(chat_answer(metrics={"generation_time_ms": 40.0})))


def test_usage_on_every_chunk_counts_once() -> None:
    early = SAID[1] | {"usage": USAGE | {"completion_tokens": 2}}
    assert read_answer(finished(stream(SAID[0], early, *SAID[2:]))).completion_tokens == 3


def test_a_stream_without_done_is_read_when_a_finish_reason_was_seen() -> None:
    assert text_of(read_answer(finished(stream(*SAID, done=False)))) == "a b c"


def test_what_shapes_the_prompt_is_passed_to_the_tokenizer() -> None:
    shaping = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    read = read_answer(finished(chat_answer(), request=chat_request(temperature=0, **shaping)))
    assert {name: read.prompt_payload[name] for name in shaping} == shaping
    assert "temperature" not in read.prompt_payload


def test_a_completion_is_read() -> None:
    read = completion()
    assert text_of(read) == "a b c"
    assert read.prompt_payload == {"model": "m", "prompt": "say it", "add_special_tokens": True}
    assert completion(add_special_tokens=False).prompt_payload["add_special_tokens"] is False


@pytest.mark.parametrize("prompt", [[5, 6, 7, 8], [[5, 6, 7, 8]]])
def test_a_prompt_of_ids_needs_no_tokenizer(prompt: object) -> None:
    read = completion(prompt)
    assert (read.prompt_ids, read.prompt_payload) == ((5, 6, 7, 8), {})


def test_a_list_of_one_prompt_is_one_prompt() -> None:
    assert completion(["say it"]) == completion("say it")


def test_an_empty_answer_asks_no_tokenizer() -> None:
    read = read_answer(finished(chat_answer(None, "stop")))
    assert read.text_payload is None
    assert read.may_end_unseen


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 4}, {"completion_tokens": 3}, "none"])
def test_an_uncounted_answer_is_skipped(usage: object) -> None:
    assert why_skipped(chat_answer(usage=usage)) == "no_usage"
    assert why_skipped(stream(*SAID[:-1])) == "no_usage"


@pytest.mark.parametrize(
    "answer",
    [
        stream(*SAID[:3], USAGE_CHUNK),
        chat_answer(finish_reason=None),
        chat_answer(finish_reason="abort"),
    ],
    ids=["stream", "none", "abort"],
)
def test_an_answer_that_did_not_end_is_skipped(answer: object) -> None:
    assert why_skipped(answer) == "incomplete_answer"


def test_an_error_inside_a_stream_is_the_backends() -> None:
    assert why_skipped(stream(*SAID[:2], {"error": {"message": "out of memory"}})) == "backend_error"


def said_with(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}


@pytest.mark.parametrize(
    "answer",
    [
        said_with(content=None, tool_calls=[{"id": "1"}]),
        said_with(content="a", reasoning_content="because"),
        said_with(content="a", reasoning="because"),
        said_with(content=None, refusal="no"),
        said_with(content="a", audio={"id": "1"}),
        said_with(content=[{"type": "text", "text": "a"}]),
        chat_answer(finish_reason="tool_calls"),
        chat_answer(
            choices=[{"index": i, "message": {"content": "a"}, "finish_reason": "stop"} for i in (0, 1)]
        ),
        chat_answer(choices="none"),
        chat_answer(choices=[{"index": [], "message": {"content": "a"}, "finish_reason": "stop"}]),
        stream(chunk(reasoning_content="because"), *SAID),
        stream(chunk(tool_calls=[{"index": 0}]), *SAID),
        b"data: {half\n\n",
        b"data: [1]\n\n",
    ],
    ids=lambda answer: str(answer)[:60],
)
def test_text_that_is_not_all_that_was_generated_is_skipped(answer: object) -> None:
    assert why_skipped(answer) == "ids_not_recoverable"


@pytest.mark.parametrize(
    "request_fields",
    [
        {"prompt": ["one", "two"]},
        {"prompt": [[1], [2]]},
        {"prompt": []},
        {"prompt": 7},
        {"prompt": [True]},
        {"prompt": [-1]},
        {"prompt": "say it", "echo": True},
        {"prompt": "say it", "suffix": "!"},
    ],
    ids=str,
)
def test_a_completion_whose_ids_cannot_be_known_is_skipped(request_fields: dict[str, Any]) -> None:
    reason = why_skipped(COMPLETION, request={"model": "m", **request_fields}, endpoint="completions")
    assert reason == "ids_not_recoverable"


@pytest.mark.parametrize(
    "messages",
    [
        None,
        ["hello"],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
    ],
    ids=str,
)
def test_a_prompt_that_is_more_than_text_is_skipped(messages: object) -> None:
    assert why_skipped(chat_answer(), request={"model": "m", "messages": messages}) == "ids_not_recoverable"


def test_other_endpoints_are_skipped() -> None:
    assert why_skipped(chat_answer(), endpoint="other") == "ids_not_recoverable"


def test_a_request_that_is_not_json_is_skipped() -> None:
    assert why_skipped(chat_answer(), request_body=b"\xff") == "ids_not_recoverable"


def stopped(**stop_reason: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop", **stop_reason}
    return chat_answer(choices=[choice])


def test_a_text_that_a_stop_string_may_have_cut_is_skipped() -> None:
    with_stop = chat_request(stop=["\n"])
    assert why_skipped(stopped(), request=with_stop) == "ids_not_recoverable"
    assert why_skipped(stopped(stop_reason="\n")) == "ids_not_recoverable"


@pytest.mark.parametrize("answer", [stopped(stop_reason=None), stopped(stop_reason=17), chat_answer()])
def test_a_text_that_ended_otherwise_is_read_in_spite_of_stop_strings(answer: dict[str, Any]) -> None:
    read_answer(finished(answer, request=chat_request(stop=["\n"])))
