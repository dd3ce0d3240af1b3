"""The embedded backend over a real socket, as clients see it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from draftrunner.drafters import DRAFTERS
from draftrunner.embedded.api import NEUTRAL
from draftrunner.embedded.app import Backend, create_app
from draftrunner.embedded.engine import Deliver, Limits, Submission
from draftrunner.embedded.generation import Ask
from draftrunner.embedded.server import assemble
from draftrunner.embedded.target import LanguageModel
from draftrunner.model import MAX_LOOKAHEAD
from draftrunner.weights import Checkpoint, end_ids, load_model, load_tokenizer
from tests.fakes.served import served
from tests.fakes.tiny_lm import CONTEXT_LENGTH, VOCABULARY_SIZE, ScriptedModel
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog"}]
PROMPT = "one two three four five six seven one two three"
TIME_LIMIT_S = 60.0

Json = dict[str, Any]


# --- servers ----------------------------------------------------------------------------------


def backend_of(model: LanguageModel, checkpoint: Checkpoint, limits: Limits | None = None) -> Backend:
    return assemble(
        model,
        tokenizer=load_tokenizer(checkpoint),
        engine_tokenizer=load_tokenizer(checkpoint),
        model_id="tiny",
        limits=limits or Limits(),
    )


def app_of(model: LanguageModel, checkpoint: Checkpoint) -> Any:
    return create_app(backend_of(model, checkpoint))


def client_of(url: str, time_limit_s: float = TIME_LIMIT_S) -> httpx.AsyncClient:
    # Without TLS, whose certificates take longer to load than a tiny model to answer.
    return httpx.AsyncClient(base_url=url, timeout=time_limit_s, verify=False)


@pytest.fixture(scope="module")
def url(tiny_checkpoint: Checkpoint) -> Iterator[str]:
    """A backend with the tiny model."""
    model = load_model(tiny_checkpoint, "float32")
    with served(app_of(LanguageModel(model, end_ids=end_ids(model)), tiny_checkpoint)) as address:
        yield address


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(url) as ours:
        yield ours


class Gated:
    """A backend with two places, whose forwards wait to be let.

    Attributes:
        submissions: What the engine was asked, in order.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        raw: Any = ScriptedModel([], vocabulary_size=VOCABULARY_SIZE, gated=True)
        self.model: ScriptedModel = raw
        self.submissions: list[Submission] = []
        backend = backend_of(LanguageModel(raw, end_ids=()), checkpoint, Limits(running=1, waiting=1))
        submit = backend.engine.submit

        def recorded(asks: Sequence[Ask], deliver: Deliver, request_id: str = "") -> Submission:
            self.submissions.append(submit(asks, deliver, request_id))
            return self.submissions[-1]

        backend.engine.submit = recorded  # type: ignore[method-assign]
        self.app = create_app(backend)


@pytest.fixture
def gated(tiny_checkpoint: Checkpoint) -> Iterator[tuple[Gated, str]]:
    backend = Gated(tiny_checkpoint)
    with served(backend.app) as address:
        yield backend, address
        backend.model.let(2 * CONTEXT_LENGTH)


# --- requests ---------------------------------------------------------------------------------


def chat(**fields: Any) -> Json:
    return {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 40} | fields


def completion(**fields: Any) -> Json:
    return {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 40} | fields


def speculating(mode: str, k: int = 5) -> Json:
    return {"vllm_xargs": {"ace_mode": mode, "ace_k": k}}


BODIES: Mapping[str, Any] = {CHAT: chat, COMPLETIONS: completion}


async def ask(client: httpx.AsyncClient, path: str, body: Json) -> Json:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    content: Json = answer.json()
    return content


async def refusal(client: httpx.AsyncClient, path: str, body: Json, status: int = 400) -> Json:
    """The error object of an answer, which has OpenAI's shape and no traceback."""
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert set(content) == {"error"}
    assert set(content["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    error: Json = content["error"]
    return error


async def stream(client: httpx.AsyncClient, path: str, body: Json) -> list[Json]:
    """The chunks of a stream that ends as it should."""
    events = await raw_stream(client, path, body)
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def raw_stream(client: httpx.AsyncClient, path: str, body: Json) -> list[str]:
    answer = await client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in events)
    return [event.removeprefix("data: ") for event in events]


def choices(chunks: Sequence[Json], index: int = 0) -> list[Json]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def joined(chunks: Sequence[Json], index: int = 0) -> Json:
    """One prompt's answer, put together from a stream."""
    parts = choices(chunks, index)
    texts = [part["delta"]["content"] if "delta" in part else part["text"] for part in parts]
    return {
        "text": "".join(texts),
        "token_ids": [token for part in parts for token in part.get("token_ids", [])],
        "finish_reason": parts[-1]["finish_reason"],
        "stop_reason": parts[-1]["stop_reason"],
    }


def whole(answer: Json, index: int = 0) -> Json:
    """The same of an answer that was not streamed."""
    choice = answer["choices"][index]
    return {
        "text": choice["message"]["content"] if "message" in choice else choice["text"],
        "token_ids": choice.get("token_ids", []),
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
    }


# --- answers ----------------------------------------------------------------------------------


async def test_a_chat_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    answer = await ask(client, CHAT, chat())
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in {"stop", "length"}
    assert choice["logprobs"] is None
    assert "token_ids" not in choice
    assert "prompt_token_ids" not in answer


async def test_a_completion_has_openais_shape(client: httpx.AsyncClient) -> None:
    answer = await ask(client, COMPLETIONS, completion())
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["text"]
    assert "token_ids" not in choice
    assert "prompt_token_ids" not in choice


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("mode", ["off", "shadow", "prod"])
async def test_a_streamed_answer_equals_the_whole_one(
    client: httpx.AsyncClient, path: str, mode: str
) -> None:
    body = BODIES[path](return_token_ids=True, **speculating(mode))
    answer = await ask(client, path, body)
    chunks = await stream(client, path, body)
    assert joined(chunks) == whole(answer)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_chat_stream_starts_with_the_role(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, CHAT, chat())
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices(chunks[1:]))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_a_stream_brings_one_chunk_for_each_forward(client: httpx.AsyncClient) -> None:
    body = completion(
        return_token_ids=True, stream_options={"include_usage": True}, ignore_eos=True, **speculating("prod")
    )
    *chunks, last = await stream(client, COMPLETIONS, body)
    assert len(chunks) == 1 + last["metrics"]["num_passes"]
    assert len(chunks) < last["usage"]["completion_tokens"]


@pytest.mark.parametrize("path", BODIES)
async def test_token_ids_are_returned_where_vllm_returns_them(client: httpx.AsyncClient, path: str) -> None:
    body = BODIES[path](return_token_ids=True)
    answer = await ask(client, path, body)
    chunks = await stream(client, path, body)
    holders = [answer, chunks[0]]
    if path == COMPLETIONS:
        holders = [holder["choices"][0] for holder in holders]
    rendered = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT}
    prompt_ids = (await ask(client, "/tokenize", rendered))["tokens"]
    assert [holder["prompt_token_ids"] for holder in holders] == [prompt_ids, prompt_ids]
    assert not any("prompt_token_ids" in json.dumps(chunk) for chunk in chunks[1:])
    assert answer["usage"]["prompt_tokens"] == len(prompt_ids)
    assert answer["usage"]["completion_tokens"] == len(whole(answer)["token_ids"])


async def test_every_form_of_prompt_is_answered(client: httpx.AsyncClient) -> None:
    ids = (await ask(client, "/tokenize", {"prompt": PROMPT}))["tokens"]
    other = "the quick brown fox"
    other_ids = (await ask(client, "/tokenize", {"prompt": other}))["tokens"]
    one = whole(await ask(client, COMPLETIONS, completion(return_token_ids=True)))
    two = whole(await ask(client, COMPLETIONS, completion(prompt=other, return_token_ids=True)))
    assert whole(await ask(client, COMPLETIONS, completion(prompt=ids, return_token_ids=True))) == one
    for prompts in ([PROMPT, other], [ids, other_ids]):
        body = completion(prompt=prompts, return_token_ids=True)
        answer = await ask(client, COMPLETIONS, body)
        assert [whole(answer, index) for index in (0, 1)] == [one, two]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert answer["usage"]["prompt_tokens"] == len(ids) + len(other_ids)
        chunks = await stream(client, COMPLETIONS, body)
        assert [joined(chunks, index) for index in (0, 1)] == [one, two]
        assert choices(chunks, 1)[0]["prompt_token_ids"] == other_ids


async def test_metrics_are_told_for_single_prompts_alone(client: httpx.AsyncClient) -> None:
    assert "metrics" in await ask(client, COMPLETIONS, completion(prompt=[PROMPT]))
    assert "metrics" not in await ask(client, COMPLETIONS, completion(prompt=[PROMPT, PROMPT]))


@pytest.mark.parametrize("path", BODIES)
async def test_usage_comes_with_a_stream_when_asked_for(client: httpx.AsyncClient, path: str) -> None:
    answer = await ask(client, path, BODIES[path]())
    *chunks, last = await stream(client, path, BODIES[path](stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"] == answer["usage"]
    assert set(last["metrics"]) == set(answer["metrics"])
    assert not any("usage" in chunk for chunk in chunks)
    assert "usage" not in (await stream(client, path, BODIES[path]()))[-1]


async def test_a_seed_makes_a_sampled_answer_repeatable(client: httpx.AsyncClient) -> None:
    async def sampled(seed: int | None) -> str:
        body = completion(temperature=1.0, seed=seed, ignore_eos=True)
        return str(whole(await ask(client, COMPLETIONS, body))["text"])

    assert await sampled(5) == await sampled(5)
    assert await sampled(5) != await sampled(6)
    assert await sampled(None) != await sampled(None)


async def test_by_default_a_completion_has_16_tokens_and_a_chat_the_rest_of_the_context(
    client: httpx.AsyncClient,
) -> None:
    body = {"model": "tiny", "temperature": 0, "ignore_eos": True}
    short = await ask(client, COMPLETIONS, body | {"prompt": PROMPT})
    assert short["usage"]["completion_tokens"] == 16
    full = await ask(client, CHAT, body | {"messages": MESSAGES})
    assert full["usage"]["total_tokens"] == CONTEXT_LENGTH
    assert whole(full)["finish_reason"] == "length"


async def test_max_completion_tokens_limits_a_chat(client: httpx.AsyncClient) -> None:
    answer = await ask(client, CHAT, chat(max_completion_tokens=3, max_tokens=9, ignore_eos=True))
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("mode", ["off", "prod"])
async def test_no_chunk_ever_shows_a_part_of_the_stop_string(client: httpx.AsyncClient, mode: str) -> None:
    text = whole(await ask(client, COMPLETIONS, completion(ignore_eos=True)))["text"]
    stop = text[20:27]
    body = completion(ignore_eos=True, stop=["never", stop], **speculating(mode))
    answer = whole(await ask(client, COMPLETIONS, body))
    assert answer == joined(await stream(client, COMPLETIONS, body))
    assert answer["text"] == text[: text.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)


async def test_a_stop_token_is_named_and_an_end_of_sequence_is_not(
    client: httpx.AsyncClient, tiny_checkpoint: Checkpoint
) -> None:
    free = whole(await ask(client, COMPLETIONS, completion(ignore_eos=True, return_token_ids=True)))
    stop = free["token_ids"][4]
    stopped = whole(await ask(client, COMPLETIONS, completion(stop_token_ids=[stop], return_token_ids=True)))
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    (end,) = end_ids(load_model(tiny_checkpoint, "float32"))
    model: Any = ScriptedModel([0, 40, end, 41], vocabulary_size=VOCABULARY_SIZE)
    with served(app_of(LanguageModel(model, end_ids=[end]), tiny_checkpoint)) as url:
        async with client_of(url) as scripted:
            answer = await ask(scripted, COMPLETIONS, completion(prompt=[0], return_token_ids=True))
    assert whole(answer) | {"text": ""} == {
        "text": "",
        "token_ids": [40, end],
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert answer["usage"]["completion_tokens"] == 2


async def test_chat_logprobs_come_with_alternatives(client: httpx.AsyncClient) -> None:
    body = chat(logprobs=True, top_logprobs=2, return_token_ids=True)
    choice = (await ask(client, CHAT, body))["choices"][0]
    told = choice["logprobs"]["content"]
    assert len(told) == len(choice["token_ids"])
    for entry in told:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        # Greedy: the chosen token is the likeliest.
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert bytes(entry["bytes"]).decode() == entry["token"]
    streamed = choices(await stream(client, CHAT, body))
    assert [entry for part in streamed if part["logprobs"] for entry in part["logprobs"]["content"]] == told


async def test_completion_logprobs_come_with_alternatives(client: httpx.AsyncClient) -> None:
    body = completion(logprobs=2, return_token_ids=True)
    choice = (await ask(client, COMPLETIONS, body))["choices"][0]
    told = choice["logprobs"]
    count = len(choice["token_ids"])
    assert {name: len(values) for name, values in told.items()} == dict.fromkeys(told, count)
    assert set(told) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert told["text_offset"] == [len("".join(told["tokens"][:place])) for place in range(count)]
    assert all(
        top[token] == max(top.values())
        for token, top in zip(told["tokens"], told["top_logprobs"], strict=True)
    )
    parts = [part["logprobs"] for part in choices(await stream(client, COMPLETIONS, body))]
    assert {name: [value for part in parts for value in part[name]] for name in told} == told


async def test_fields_without_effect_here_are_ignored(client: httpx.AsyncClient) -> None:
    body = completion(user="me", x_future={"a": [1, None]}, metadata={}, priority=3, vllm_xargs={"other": 1})
    assert whole(await ask(client, COMPLETIONS, body)) == whole(await ask(client, COMPLETIONS, completion()))


async def test_text_parts_of_a_message_are_read_as_its_text(client: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": text} for text in ("the quick brown fox jumps ", "over the lazy dog")]
    body = chat(messages=[{"role": "user", "content": parts}], return_token_ids=True)
    assert (await ask(client, CHAT, body))["prompt_token_ids"] == (
        await ask(client, CHAT, chat(return_token_ids=True))
    )["prompt_token_ids"]


# --- the in_engine contract -------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, speculating("off"), {"vllm_xargs": {}}, {"vllm_xargs": None}])
async def test_nothing_speculates_unasked(client: httpx.AsyncClient, fields: Json) -> None:
    metrics = (await ask(client, COMPLETIONS, completion(ignore_eos=True, **fields)))["metrics"]
    assert metrics["speculative_decoding"] is None
    assert metrics["num_passes"] == 39


async def test_the_counts_of_a_speculated_answer_agree_with_each_other(client: httpx.AsyncClient) -> None:
    body = completion(ignore_eos=True, max_tokens=120, **speculating("prod", 3))
    answer = await ask(client, COMPLETIONS, body)
    metrics = answer["metrics"]
    told = metrics["speculative_decoding"]
    assert (told["mode"], told["method"], told["profile"], told["num_spec_tokens"]) == (
        "prod",
        "ngram",
        "embedded",
        3,
    )
    drafted, accepted = told["per_step_drafted"], told["per_step_accepted"]
    assert told["num_spec_steps"] == len(drafted) == len(accepted) <= metrics["num_passes"]
    assert all(0 <= a <= d <= 3 and d > 0 for d, a in zip(drafted, accepted, strict=True))
    assert told["num_draft_tokens"] == sum(drafted)
    assert told["num_accepted_draft_tokens"] == sum(accepted) > 0
    assert told["acceptance_histogram"] == [accepted.count(length) for length in range(4)]
    assert told["draft_acceptance_rate"] == pytest.approx(sum(accepted) / sum(drafted))
    assert told["mean_acceptance_length"] == pytest.approx(1 + sum(accepted) / len(drafted))
    # One token from prefill, one from each pass, and the accepted drafts; the last pass may be cut short.
    tokens = 1 + metrics["num_passes"] + sum(accepted)
    assert tokens - 1 <= answer["usage"]["completion_tokens"] <= tokens


@pytest.mark.parametrize("k", [1, 3, 5, 8])
@pytest.mark.parametrize("temperature", [0, 0.8])
async def test_shadow_answers_as_off_and_counts_as_prod(
    client: httpx.AsyncClient, k: int, temperature: float
) -> None:
    body = completion(temperature=temperature, seed=4, max_tokens=150, ignore_eos=True, return_token_ids=True)
    off, shadow, prod = [
        await ask(client, COMPLETIONS, body | speculating(mode, k)) for mode in ("off", "shadow", "prod")
    ]
    assert whole(off) == whole(shadow) == whole(prod)
    would_be, real = (answer["metrics"]["speculative_decoding"] for answer in (shadow, prod))
    assert would_be | {"mode": "prod"} == real
    assert would_be["mode"] == "shadow"
    assert shadow["metrics"]["num_passes"] == off["metrics"]["num_passes"] > prod["metrics"]["num_passes"]


async def test_shadow_counts_as_prod_up_to_the_contexts_end(client: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "ignore_eos": True}
    answers = [await ask(client, CHAT, body | speculating(mode, 8)) for mode in ("shadow", "prod")]
    assert answers[0]["usage"]["total_tokens"] == CONTEXT_LENGTH
    would_be, real = (answer["metrics"]["speculative_decoding"] for answer in answers)
    assert would_be | {"mode": "prod"} == real


async def test_the_timings_of_an_answer_agree_with_each_other(client: httpx.AsyncClient) -> None:
    metrics = (await ask(client, COMPLETIONS, completion(ignore_eos=True)))["metrics"]
    assert 0 <= metrics["queue_time_ms"] <= metrics["time_to_first_token_ms"]
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 39)
    computing = metrics["time_to_first_token_ms"] - metrics["queue_time_ms"] + metrics["generation_time_ms"]
    assert metrics["tokens_per_second"] == pytest.approx(1e3 * 40 / computing)
    single = (await ask(client, COMPLETIONS, completion(max_tokens=1)))["metrics"]
    assert (single["mean_itl_ms"], single["num_passes"]) == (None, 0)


@pytest.mark.parametrize(
    "extras",
    [
        {"ace_mode": "fast"},
        {"ace_mode": True},
        {"ace_mode": "prod", "ace_k": 0},
        {"ace_mode": "prod", "ace_k": 17},
        {"ace_mode": "prod", "ace_k": "5"},
        {"ace_mode": "off", "ace_k": 2.5},
        {"ace_mode": "prod", "ace_drafter": "egale"},
        {"ace_mode": "off", "ace_drafter": ""},
        {"ace_mode": "prod", "ace_drafter": 5},
        {"ace_mode": "prod", "ace_tenant": 5},
        {"ace_mode": "prod", "ace_tenant": "t" * 257},
        "prod",
    ],
)
async def test_extras_that_mean_nothing_are_refused(client: httpx.AsyncClient, extras: object) -> None:
    error = await refusal(client, COMPLETIONS, completion(vllm_xargs=extras))
    assert error["param"] == "vllm_xargs"


async def test_an_unknown_drafter_is_refused_with_those_there_are(client: httpx.AsyncClient) -> None:
    error = await refusal(client, COMPLETIONS, completion(vllm_xargs={"ace_drafter": "egale"}))
    assert error["message"] == (
        f"vllm_xargs.ace_drafter: 'egale' is not known. Allowed: {', '.join(sorted(DRAFTERS))}."
    )


async def test_an_answer_is_drafted_from_what_the_tenant_was_answered_before_and_no_other(
    client: httpx.AsyncClient,
) -> None:
    """Shadow sees what prod would have, and teaches nothing."""

    async def accepted(mode: str, tenant: str) -> int:
        words = {"ace_mode": mode, "ace_drafter": "suffix", "ace_tenant": tenant}
        body = completion(temperature=0.8, seed=8, ignore_eos=True, vllm_xargs=words)
        counts = (await ask(client, COMPLETIONS, body))["metrics"]["speculative_decoding"]
        assert counts["method"] == "suffix"
        return int(counts["num_accepted_draft_tokens"])

    alone = await accepted("shadow", "mine")
    assert await accepted("prod", "mine") == alone
    after = await accepted("shadow", "mine")
    assert after > alone
    assert await accepted("prod", "mine") == after
    assert await accepted("prod", "another's") == alone


# --- scored drafts ----------------------------------------------------------------------------

IDS = [40, 41, 42, 43, 44, 45]


def scoring(draft_length: object, **fields: Any) -> Json:
    """A body whose prompt ends with a draft of that length."""
    extras = {"ace_score": draft_length}
    return completion(prompt=IDS, max_tokens=1, vllm_xargs=extras) | fields


@pytest.mark.parametrize("draft_length", [0, 1, 5])
@pytest.mark.parametrize("temperature", [0, 1.0])
async def test_a_draft_is_answered_with_the_targets_own_choices(
    client: httpx.AsyncClient, draft_length: int, temperature: float
) -> None:
    sampling = {"temperature": temperature, "seed": 3}
    answer = await ask(client, COMPLETIONS, scoring(draft_length, return_token_ids=True, **sampling))
    prompts = [IDS[: len(IDS) - draft_length + place] for place in range(draft_length + 1)]
    alone = await ask(
        client, COMPLETIONS, completion(prompt=prompts, max_tokens=1, return_token_ids=True, **sampling)
    )
    choices = [whole(alone, place)["token_ids"][0] for place in range(draft_length + 1)]
    assert answer["ace_score"] == {"choices": choices, "ends": [False] * (draft_length + 1)}
    assert whole(answer) == whole(alone, draft_length), "the answer's one token is the last choice"
    assert "ace_score" not in alone


async def test_a_choice_that_ends_the_answer_is_marked_unless_ends_are_ignored(
    tiny_checkpoint: Checkpoint,
) -> None:
    model: Any = ScriptedModel([0, 40, 1, 41, 1], vocabulary_size=VOCABULARY_SIZE)
    with served(app_of(LanguageModel(model, end_ids=[1]), tiny_checkpoint)) as url:
        async with client_of(url) as scripted:
            body = scoring(3, prompt=[0, 40, 1, 41])
            assert (await ask(scripted, COMPLETIONS, body))["ace_score"] == {
                "choices": [40, 1, 41, 1],
                "ends": [False, True, False, True],
            }
            free = (await ask(scripted, COMPLETIONS, body | {"ignore_eos": True}))["ace_score"]
            assert free["ends"] == [False] * 4


async def test_a_one_token_answer_tells_an_end_of_sequence_from_the_limit(
    tiny_checkpoint: Checkpoint,
) -> None:
    """What verifying a draft by one prompt for each of its prefixes needs to know."""
    model: Any = ScriptedModel([0, 40, 1], vocabulary_size=VOCABULARY_SIZE)
    with served(app_of(LanguageModel(model, end_ids=[1]), tiny_checkpoint)) as url:
        async with client_of(url) as scripted:
            body = completion(prompt=[[0], [0, 40]], max_tokens=1, return_token_ids=True)
            answer = await ask(scripted, COMPLETIONS, body)
    assert [(choice["token_ids"], choice["finish_reason"]) for choice in answer["choices"]] == [
        ([40], "length"),
        ([1], "stop"),
    ]


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (scoring(17), "vllm_xargs.ace_score"),
        (scoring(-1), "vllm_xargs.ace_score"),
        (scoring("2"), "vllm_xargs.ace_score"),
        (scoring(len(IDS)), "one prompt of token ids, longer than the draft"),
        (scoring(1, prompt=PROMPT), "one prompt of token ids"),
        (scoring(1, prompt=[IDS, IDS]), "one prompt of token ids"),
        (scoring(1, max_tokens=2), "max_tokens: 1"),
        (scoring(1, max_tokens=None), "max_tokens: 1"),
        (scoring(1, stream=True), "without stream"),
        (scoring(1, stop=["a"]), "without stream, stop"),
        (scoring(1, stop_token_ids=[1]), "stop_token_ids"),
        (scoring(1, logprobs=0), "logprobs"),
        (scoring(1, n=2), "n is not supported"),
        (scoring(1, vllm_xargs={"ace_score": 1, "ace_mode": "prod"}), "ace_mode: off"),
    ],
)
async def test_a_draft_is_scored_alone_and_by_ids(
    client: httpx.AsyncClient, body: Json, missing: str
) -> None:
    assert missing in (await refusal(client, COMPLETIONS, body))["message"]


async def test_a_conversation_has_no_draft_to_score(client: httpx.AsyncClient) -> None:
    error = await refusal(client, CHAT, chat(vllm_xargs={"ace_score": 0}))
    assert "/v1/completions" in error["message"]


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", NEUTRAL)
async def test_a_field_that_would_change_the_output_is_refused(
    client: httpx.AsyncClient, path: str, field: str
) -> None:
    error = await refusal(client, path, BODIES[path](**{field: ["something else"]}))
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert "null" in error["message"]


async def test_values_without_effect_are_accepted(client: httpx.AsyncClient) -> None:
    plain = whole(await ask(client, COMPLETIONS, completion()))
    for place in range(2):
        fields = {field: values[place] for field, values in NEUTRAL.items() if len(values) > place}
        assert whole(await ask(client, COMPLETIONS, completion(**fields))) == plain
    assert whole(await ask(client, COMPLETIONS, completion(**dict.fromkeys(NEUTRAL)))) == plain


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"max_tokens": "5"}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": True}, "max_tokens"),
        (COMPLETIONS, {"temperature": 2.5}, "temperature"),
        (COMPLETIONS, {"temperature": -0.1}, "temperature"),
        (COMPLETIONS, {"top_p": 0}, "top_p"),
        (COMPLETIONS, {"top_k": -2}, "top_k"),
        (COMPLETIONS, {"seed": 2**63}, "seed"),
        (COMPLETIONS, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        (COMPLETIONS, {"stop": [""]}, "stop"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"stream": "yes"}, "stream"),
        (COMPLETIONS, {"prompt": 5}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", [1]]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, True]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [100_000]}, "prompt"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": [{"content": "no role"}]}, "messages"),
        (CHAT, {"messages": [{"role": "oracle", "content": "unknown to the template"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"top_logprobs": 2}, None),
        (CHAT, {"stream_options": {"include_usage": True}}, None),
    ],
)
async def test_bad_values_are_refused_and_named(
    client: httpx.AsyncClient, path: str, fields: Json, param: str | None
) -> None:
    error = await refusal(client, path, BODIES[path](**fields))
    assert error["param"] == param
    assert error["message"]


async def test_json_that_no_client_means_is_refused(client: httpx.AsyncClient) -> None:
    for body in (
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": "a", "stop": "\\ud800"}',
        b'{"model": "\\ud800", "prompt": "a"}',
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny", "prompt": "a", "top_p": Infinity}',
        b'{"model": "tiny", "prompt": "a", "max_tokens": 1e400}',
        b'{"model": "tiny", "prompt": "a", "vllm_xargs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ):
        answer = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_without_end_is_refused(client: httpx.AsyncClient) -> None:
    error = await refusal(client, COMPLETIONS, completion(prompt="a" * 9_000_000), status=413)
    assert error["code"] == "body_too_large"


async def test_a_body_that_is_no_json_is_refused(client: httpx.AsyncClient) -> None:
    for body in (b'{"model": ', b"[]", b"", b"\xff"):
        answer = await client.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(model="gpt-9")),
        (COMPLETIONS, completion(model="gpt-9")),
        ("/tokenize", {"model": "gpt-9", "prompt": "a"}),
        ("/detokenize", {"model": "gpt-9", "tokens": [1]}),
    ],
)
async def test_an_unknown_model_is_not_found(client: httpx.AsyncClient, path: str, body: Json) -> None:
    error = await refusal(client, path, body, status=404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "gpt-9" in error["message"]
    assert "tiny" in error["message"]


async def test_an_unknown_route_is_not_found(client: httpx.AsyncClient) -> None:
    assert (await refusal(client, "/v1/embeddings", {}, status=404))["code"] == "unknown_route"
    assert (await refusal(client, "/v1/models", {}, status=405))["code"] == "unknown_route"


async def test_a_prompt_beyond_the_context_is_refused_with_both_lengths(client: httpx.AsyncClient) -> None:
    error = await refusal(client, COMPLETIONS, completion(prompt=[40] * 600))
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert "600" in error["message"]


async def test_more_tokens_than_the_context_leaves_are_refused(client: httpx.AsyncClient) -> None:
    error = await refusal(client, COMPLETIONS, completion(prompt=[40] * 500, max_tokens=13))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "up to 12" in error["message"]
    short = await ask(client, COMPLETIONS, {"model": "tiny", "prompt": [40] * 500, "ignore_eos": True})
    assert short["usage"]["completion_tokens"] == 12


async def test_more_prompts_than_there_are_places_are_refused(client: httpx.AsyncClient) -> None:
    error = await refusal(client, COMPLETIONS, completion(prompt=["a"] * 1000))
    assert "1000" in error["message"]
    assert str(Limits().prompts) in error["message"]


async def test_a_model_without_chat_template_serves_completions_alone(tiny_checkpoint: Checkpoint) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    tokenizer.chat_template = None
    model: Any = ScriptedModel([], vocabulary_size=VOCABULARY_SIZE)
    backend = assemble(
        LanguageModel(model, end_ids=()),
        tokenizer=tokenizer,
        engine_tokenizer=load_tokenizer(tiny_checkpoint),
        model_id="tiny",
        limits=Limits(),
    )
    with served(create_app(backend)) as url:
        async with client_of(url) as client:
            assert "chat template" in (await refusal(client, CHAT, chat()))["message"]
            await ask(client, COMPLETIONS, completion())


# --- load, leaving and failing ----------------------------------------------------------------


def gauge(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"ace_embedded_{name} ")]
    return float(value)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_client_that_leaves_stops_its_generation(gated: tuple[Gated, str], streaming: bool) -> None:
    backend, url = gated
    with pytest.raises(httpx.ReadTimeout):
        async with client_of(url, time_limit_s=0.5) as client:
            await client.post(COMPLETIONS, json=completion(max_tokens=400, stream=streaming, ignore_eos=True))
    await until(lambda: backend.submissions[0].cancelled)
    # The forward under way ends, and no other follows.
    backend.model.let(1)
    await until(lambda: gauge(url, "requests_running") == 0)
    backend.model.let(3)
    assert len(backend.model.fed) == 1


async def test_a_full_queue_is_told_with_a_time_to_come_back(gated: tuple[Gated, str]) -> None:
    backend, url = gated
    async with client_of(url) as client:
        async with client.stream("POST", COMPLETIONS, json=completion(prompt=["a", "b"], stream=True)):
            await until(lambda: gauge(url, "requests_running") + gauge(url, "requests_waiting") == 2)
            answer = await client.post(COMPLETIONS, json=completion(stream=True))
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"]["code"] == "queue_full"
            # The model is stuck, and the rest of the server is not.
            assert (await client.get("/health")).status_code == 200
        await until(lambda: backend.submissions[0].cancelled)
        backend.model.let(1)
        await until(lambda: gauge(url, "requests_running") + gauge(url, "requests_waiting") == 0)
        backend.model.let(1)
        assert (await client.post(COMPLETIONS, json=completion(max_tokens=1))).status_code == 200


async def test_a_request_is_turned_plain_by_a_call_that_a_full_queue_refuses(
    gated: tuple[Gated, str],
) -> None:
    backend, url = gated
    named = {"x-request-id": "r-1"}
    plainly = completion(max_tokens=1, vllm_xargs={"ace_mode": "off", "ace_plain": ["r-0", "r-1"]})
    async with client_of(url) as client:
        running = completion(prompt=["a", "b"], stream=True, **speculating("prod"))
        async with client.stream("POST", COMPLETIONS, json=running, headers=named):
            await until(lambda: gauge(url, "requests_running") + gauge(url, "requests_waiting") == 2)
            assert not backend.submissions[0].plain
            assert (await client.post(COMPLETIONS, json=plainly)).status_code == 503
            assert backend.submissions[0].plain
        await until(lambda: backend.submissions[0].cancelled)
        backend.model.let(1)


@pytest.mark.parametrize("ids", ["r-1", [1], [""], ["x"] * 1025], ids=["text", "number", "empty", "many"])
async def test_what_is_to_turn_plain_is_a_list_of_names(client: httpx.AsyncClient, ids: Any) -> None:
    error = await refusal(client, COMPLETIONS, completion(vllm_xargs={"ace_plain": ids}))
    assert "ace_plain" in error["message"]


@pytest.fixture
def failing(tiny_checkpoint: Checkpoint) -> Iterator[str]:
    """A backend that fails at an answer's third forward."""

    class Failing(ScriptedModel):
        def __call__(self, **arguments: Any) -> Any:
            if arguments["cache"].get_seq_length() == 2:
                raise RuntimeError("secret detail")
            return super().__call__(**arguments)

    model: Any = Failing([0, 40, 41, 42], vocabulary_size=VOCABULARY_SIZE)
    with served(app_of(LanguageModel(model, end_ids=()), tiny_checkpoint)) as url:
        yield url


async def test_a_failure_is_told_without_its_details(failing: str) -> None:
    async with client_of(failing) as client:
        error = await refusal(client, COMPLETIONS, completion(prompt=[0]), status=500)
        assert error["code"] == "generation_failed"
        assert "secret" not in error["message"]


async def test_a_failure_inside_a_stream_is_its_last_event(failing: str) -> None:
    async with client_of(failing) as client:
        events = await raw_stream(client, COMPLETIONS, completion(prompt=[0]))
    assert len(events) == 3
    assert json.loads(events[-1])["error"]["code"] == "generation_failed"


# --- the other routes -------------------------------------------------------------------------


async def test_the_model_is_listed_with_its_context(client: httpx.AsyncClient) -> None:
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert model["ace_score"] == MAX_LOOKAHEAD
    assert (model["id"], model["owned_by"], model["max_model_len"]) == (
        "tiny",
        "ace-embedded",
        CONTEXT_LENGTH,
    )


async def test_the_version_names_the_engine_and_its_drafters(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/version")).json()
    assert set(answer) == {"version", "engine", "drafters"}
    assert (answer["engine"], answer["drafters"]) == ("ace-embedded", sorted(DRAFTERS))


async def test_a_text_survives_tokenize_and_detokenize(client: httpx.AsyncClient) -> None:
    tokens = await ask(client, "/tokenize", {"model": "tiny", "prompt": "thé à 3 €"})
    assert tokens["count"] == len(tokens["tokens"])
    assert (tokens["max_model_len"], tokens["token_strs"]) == (CONTEXT_LENGTH, None)
    back = await ask(client, "/detokenize", {"model": "tiny", "tokens": tokens["tokens"]})
    assert back == {"prompt": "thé à 3 €"}
    told = await ask(client, "/tokenize", {"prompt": "the dog", "return_token_strs": True})
    assert len(told["token_strs"]) == told["count"]


async def test_special_tokens_are_left_out_of_a_text_where_that_is_asked(client: httpx.AsyncClient) -> None:
    tokens = (await ask(client, "/tokenize", {"prompt": "the<|im_end|> dog"}))["tokens"]
    for asked, text in ((None, "the<|im_end|> dog"), (False, "the<|im_end|> dog"), (True, "the dog")):
        said = {} if asked is None else {"skip_special_tokens": asked}
        assert await ask(client, "/detokenize", {"tokens": tokens, **said}) == {"prompt": text}


async def test_a_conversation_may_be_tokenized_without_the_answers_opening(client: httpx.AsyncClient) -> None:
    opened = (await ask(client, "/tokenize", {"messages": MESSAGES}))["tokens"]
    closed = (await ask(client, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}))[
        "tokens"
    ]
    assert opened[: len(closed)] == closed
    assert len(opened) > len(closed)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}),
        ("/tokenize", {"prompt": ["a"]}),
        ("/tokenize", {"messages": MESSAGES, "tools": [{"type": "function"}]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [100_000]}),
        ("/detokenize", {"tokens": "a"}),
    ],
)
async def test_bad_bodies_for_the_tokenizer_are_refused(
    client: httpx.AsyncClient, path: str, body: Json
) -> None:
    await refusal(client, path, body)


async def test_the_official_client_is_served(url: str) -> None:
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as official:
        answer = await official.chat.completions.create(**chat())
        text = ""
        async for chunk in await official.chat.completions.create(**chat(stream=True)):
            text += chunk.choices[0].delta.content or ""
    assert text == answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0
