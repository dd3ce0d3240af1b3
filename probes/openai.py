"""Questions for any OpenAI-compatible server.

Servers ignore fields that they do not know, so what is judged is the answer, never the status alone.
"""

from __future__ import annotations

from typing import Any

from probes.in_engine import IN_ENGINE
from probes.load_gauge import LOAD_GAUGE
from probes.model import Capability, Finding
from probes.question import MESSAGES, TEXT, Question, Target, no, unknown, without_success, yes
from probes.sampling import INDEPENDENT_DRAWS, NEUTRAL_DEFAULTS
from probes.scored import SCORED
from probes.wire import Reply, are_ids, clipped, is_count

_CONTEXT_SPELLINGS: tuple[tuple[str, ...], ...] = (
    ("max_model_len",),
    ("context_length",),
    ("context_window",),
    ("max_context_length",),
    ("meta", "n_ctx"),
    ("meta", "n_ctx_train"),
)
_PROMPT_IDS = [5, 6, 7, 8]
_SPACED = "it 's a . b , c !"
_HALF = "\N{REPLACEMENT CHARACTER}"
"""How a character looks whose last bytes are still to come."""


async def ask_models(target: Target) -> Finding:
    """Which models does it list?"""
    shown = ", ".join(target.listed[:5]) + (", …" if len(target.listed) > 5 else "")
    return yes(Capability.MODELS, f"lists {len(target.listed)}: {shown}", list(target.listed))


async def ask_context_length(target: Target) -> Finding:
    """How many tokens may prompt and answer have?"""
    for spelling in _CONTEXT_SPELLINGS:
        value: Any = target.card
        for name in spelling:
            value = value.get(name) if isinstance(value, dict) else None
        if is_count(value) and value > 0:
            return yes(Capability.CONTEXT_LENGTH, f"/v1/models says {'.'.join(spelling)} = {value}", value)
    return unknown(
        Capability.CONTEXT_LENGTH, f"/v1/models says of {target.model!r} only {sorted(target.card)}"
    )


async def ask_streaming(target: Target) -> Finding:
    """Does an answer arrive piece by piece?"""
    reply = await target.chat_or_complete(4, chat={"stream": True}, complete={"stream": True})
    if not reply.ok:
        return without_success(Capability.STREAMING, reply)
    pieces = [event for event in reply.events() if _text_of(event)]
    if len(pieces) > 1:
        return yes(Capability.STREAMING, f"{reply.path} sent 4 tokens in {len(pieces)} events")
    if pieces:
        return unknown(Capability.STREAMING, f"{reply.path} sent the whole answer in one event")
    if reply.content_type.startswith("text/event-stream"):
        return unknown(Capability.STREAMING, f"{reply.path} sent no text: {reply.evidence}")
    return no(Capability.STREAMING, f"asked to stream, {reply.path} sent {reply.content_type or 'no type'}")


async def ask_stream_usage(target: Target) -> Finding:
    """Does a stream end with token counts when asked to?"""
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    reply = await target.chat_or_complete(2, chat=asked, complete=asked)
    if not reply.ok:
        return without_success(Capability.STREAM_USAGE, reply)
    events = reply.events()
    for event in events:
        usage = event.get("usage")
        if isinstance(usage, dict) and is_count(usage.get("completion_tokens")):
            return yes(Capability.STREAM_USAGE, f"{reply.path} counted {usage['completion_tokens']} tokens")
    if events:
        return no(Capability.STREAM_USAGE, f"none of {len(events)} events of {reply.path} has token counts")
    return unknown(Capability.STREAM_USAGE, f"no event was read: {reply.evidence}")


async def ask_token_id_prompts(target: Target) -> Finding:
    """May a prompt be given as token ids, and are they taken as they are?"""
    reply = await target.complete(_PROMPT_IDS, 1)
    if not reply.ok:
        return without_success(Capability.TOKEN_ID_PROMPTS, reply)
    choices, counted = reply.dig("choices"), reply.dig("usage", "prompt_tokens")
    if not isinstance(choices, list) or not is_count(counted):
        return unknown(Capability.TOKEN_ID_PROMPTS, f"no choices or no usage: {reply.evidence}")
    seen = (
        f"{len(_PROMPT_IDS)} ids were answered with {len(choices)} choice(s) and counted as {counted} tokens"
    )
    if len(choices) == 1 and counted == len(_PROMPT_IDS):
        return yes(Capability.TOKEN_ID_PROMPTS, seen)
    return no(Capability.TOKEN_ID_PROMPTS, seen)


async def ask_prompt_lists(target: Target) -> Finding:
    """Are several prompts answered in one call?"""
    reply = await target.complete([TEXT, TEXT + " seven"], 1)
    if not reply.ok:
        return without_success(Capability.PROMPT_LISTS, reply)
    choices = reply.dig("choices")
    if not isinstance(choices, list):
        return unknown(Capability.PROMPT_LISTS, f"no choices: {reply.evidence}")
    indices = [reply.dig("choices", place, "index") for place in range(len(choices))]
    seen = f"2 prompts were answered with choices {indices}"
    both = len(indices) == 2 and all(index in indices for index in (0, 1))
    return yes(Capability.PROMPT_LISTS, seen) if both else no(Capability.PROMPT_LISTS, seen)


async def ask_returned_token_ids(target: Target) -> Finding:
    """Does it say which ids it read and wrote?"""
    asked = {"return_token_ids": True}
    reply = await target.chat_or_complete(2, chat=asked, complete=asked)
    if not reply.ok:
        return without_success(Capability.RETURNED_TOKEN_IDS, reply)
    read, written = _read_and_written(reply)
    counted = [reply.dig("usage", name) for name in ("prompt_tokens", "completion_tokens")]
    if not (are_ids(written) and are_ids(read)):
        return no(Capability.RETURNED_TOKEN_IDS, f"{reply.path} was asked for token ids and sent none")
    if not all(is_count(number) for number in counted):
        return unknown(Capability.RETURNED_TOKEN_IDS, f"{reply.path} sent ids and no counts to check them by")
    seen = (
        f"{reply.path} sent {len(read)} + {len(written)} ids for {counted[0]} + {counted[1]} counted tokens"
    )
    agrees = counted == [len(read), len(written)]
    return yes(Capability.RETURNED_TOKEN_IDS, seen) if agrees else no(Capability.RETURNED_TOKEN_IDS, seen)


async def ask_logprobs(target: Target) -> Finding:
    """Does it give the log-probabilities of the tokens that it wrote?"""
    reply = await target.chat_or_complete(
        1, chat={"logprobs": True, "top_logprobs": 1}, complete={"logprobs": 1}
    )
    if not reply.ok:
        return without_success(Capability.LOGPROBS, reply)
    if not reply.dig("choices", 0):
        return unknown(Capability.LOGPROBS, f"no choice: {reply.evidence}")
    given = reply.dig("choices", 0, "logprobs")
    found = reply.dig("choices", 0, "logprobs", "content", 0, "logprob")
    if found is None:
        found = reply.dig("choices", 0, "logprobs", "token_logprobs", 0)
    if isinstance(found, int | float) and -1e6 < found <= 0:
        return yes(Capability.LOGPROBS, f"{reply.path} gave {found:.4g} for one token")
    return no(Capability.LOGPROBS, f"{reply.path} was asked for log-probabilities and sent {str(given)[:60]}")


async def ask_tokenize(target: Target) -> Finding:
    """Does `/tokenize` give the ids that the model reads, chats included?"""
    text = await target.tokenize(prompt=TEXT)
    if not text.ok:
        return without_success(Capability.TOKENIZE, text)
    if _tokenized(text) is None:
        return no(Capability.TOKENIZE, f"it answers in another shape: {text.evidence}")
    chat = await target.tokenize(messages=MESSAGES, add_generation_prompt=True)
    if _tokenized(chat) is not None:
        answer = await target.chat(1)
        if not answer.refused:
            return _compared("a chat", chat, answer)
    elif not chat.refused:
        return unknown(Capability.TOKENIZE, f"texts yes, chats: {chat.evidence}")
    return _compared("a text (chats are refused)", text, await target.complete(TEXT, 1))


async def ask_detokenize(target: Target) -> Finding:
    """Does `/detokenize` give the text that the model's answers show for the same ids?"""
    first = await target.detokenize(_PROMPT_IDS)
    if not first.ok:
        return without_success(Capability.DETOKENIZE, first)
    if _spelled(first) is None:
        return no(Capability.DETOKENIZE, f"it answers in another shape: {first.evidence}")
    if (tidied := await _tidied(target)) is not None:
        return no(Capability.DETOKENIZE, f"it tidies spaces: {_SPACED!r} comes back as {clipped(tidied)!r}")
    asked = {"return_token_ids": True}
    answer = await target.chat_or_complete(4, chat=asked, complete=asked)
    shown = answer.dig("choices", 0, "message", "content") or answer.dig("choices", 0, "text")
    read, written = _read_and_written(answer)
    if not (isinstance(shown, str) and are_ids(read) and are_ids(written)):
        return unknown(Capability.DETOKENIZE, f"no text with its ids to compare with: {answer.evidence}")
    if answer.dig("choices", 0, "finish_reason") == "stop":
        written = written[:-1]  # the end of the answer, which has no text
    before, after = await target.detokenize(read), await target.detokenize(read + written)
    text = (_spelled(after) or "").removeprefix(_spelled(before) or "")
    seen = f"{answer.path} shows {clipped(shown)!r}, and its ids are spelled {clipped(text)!r}"
    same = text.rstrip(_HALF) == shown.rstrip(_HALF)
    return yes(Capability.DETOKENIZE, seen) if same else no(Capability.DETOKENIZE, seen)


async def _tidied(target: Target) -> str | None:
    """What `/detokenize` makes of a text with loose spaces, if it is another text.

    Some tokenizers tidy the spaces of a whole text, which an answer in the making never shows.
    """
    ids = (await target.tokenize(prompt=_SPACED, add_special_tokens=False)).dig("tokens")
    if not are_ids(ids):
        return None
    spelled = _spelled(await target.detokenize(ids))
    return None if spelled is None or spelled.endswith(_SPACED) else spelled


SUITE = (
    Question(capability=Capability.MODELS, tokens=0, ask=ask_models),
    Question(capability=Capability.CONTEXT_LENGTH, tokens=0, ask=ask_context_length),
    Question(capability=Capability.STREAMING, tokens=4, ask=ask_streaming),
    Question(capability=Capability.STREAM_USAGE, tokens=2, ask=ask_stream_usage),
    Question(capability=Capability.TOKEN_ID_PROMPTS, tokens=1, ask=ask_token_id_prompts),
    Question(capability=Capability.PROMPT_LISTS, tokens=2, ask=ask_prompt_lists),
    Question(capability=Capability.RETURNED_TOKEN_IDS, tokens=2, ask=ask_returned_token_ids),
    Question(capability=Capability.LOGPROBS, tokens=1, ask=ask_logprobs),
    Question(capability=Capability.TOKENIZE, tokens=1, ask=ask_tokenize),
    IN_ENGINE,
    Question(capability=Capability.DETOKENIZE, tokens=4, ask=ask_detokenize),
    SCORED,
    INDEPENDENT_DRAWS,
    NEUTRAL_DEFAULTS,
    LOAD_GAUGE,
)


def _text_of(event: dict[str, Any]) -> str:
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _compared(what: str, ids: Reply, answer: Reply) -> Finding:
    """Whether the model read as many ids as `/tokenize` gave."""
    count, counted = _tokenized(ids), answer.dig("usage", "prompt_tokens")
    if not answer.ok or not is_count(counted):
        return unknown(Capability.TOKENIZE, f"nothing to check its ids by: {answer.evidence}")
    seen = f"{count} ids for {what} that the engine counted as {counted} tokens"
    return yes(Capability.TOKENIZE, seen) if count == counted else no(Capability.TOKENIZE, seen)


def _tokenized(reply: Reply) -> int | None:
    """How many ids a `/tokenize` answer holds; None when it is none."""
    ids, count = reply.dig("tokens"), reply.dig("count")
    return len(ids) if reply.ok and are_ids(ids) and count == len(ids) else None


def _spelled(reply: Reply) -> str | None:
    """The text in a `/detokenize` answer; None when it is none."""
    text = reply.dig("prompt")
    return text if reply.ok and isinstance(text, str) else None


def _read_and_written(reply: Reply) -> tuple[Any, Any]:
    """What an answer gives as the ids of its prompt, and of itself."""
    read = reply.dig("prompt_token_ids") or reply.dig("choices", 0, "prompt_token_ids")
    return read, reply.dig("choices", 0, "token_ids")
