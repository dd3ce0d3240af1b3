"""Answers as they go over the wire: OpenAI's shapes, with vLLM's token ids and per-request metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftrunner.embedded.generation import Ask, Emission, Finish, Mode
from draftrunner.embedded.sampling import TokenLogprob
from draftrunner.model import Drafter
from draftrunner.profiles import EMBEDDED
from draftrunner.replay import replay

_UNLIKELIEST = -9999.0
"""Stands for minus infinity, which JSON cannot carry (vLLM's choice)."""

Spell = Callable[[Sequence[int]], str]
"""Turns token ids into text, special tokens spelled out."""


@dataclass(slots=True)
class Answer:
    """One prompt's answer as it comes in."""

    ask: Ask
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    choices: tuple[int, ...] = ()

    def add(self, emission: Emission) -> None:
        """Append what one forward added."""
        self.token_ids.extend(emission.token_ids)
        self.text += emission.text
        self.logprobs.extend(emission.logprobs)
        self.finish = emission.finish
        self.choices = emission.choices

    @property
    def whole(self) -> Emission:
        """The answer so far, as if one forward had made it."""
        return Emission(
            token_ids=tuple(self.token_ids),
            text=self.text,
            logprobs=tuple(self.logprobs),
            finish=self.finish,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What every chunk of one response repeats."""

    request_id: str
    created: int
    model: str
    wants_token_ids: bool


class Shape(Protocol):
    """One endpoint's way to spell answers."""

    def opening(self, answer: Answer) -> dict[str, Any] | None:
        """Return the chunk that goes before an answer's first, if any."""
        ...

    def chunk(self, index: int, answer: Answer, emission: Emission) -> dict[str, Any]:
        """Return the chunk for `emission`, which `answer` does not hold yet."""
        ...

    def last_chunk(self) -> dict[str, Any]:
        """Return the chunk without choices that usage is added to."""
        ...

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the answer to a request that is not streamed; usage is still to be added."""
        ...


class ChatShape:
    """`/v1/chat/completions`."""

    def __init__(self, heading: Heading, spell: Spell) -> None:
        self._heading = heading
        self._spell = spell

    def opening(self, answer: Answer) -> dict[str, Any] | None:
        """Return the chunk that names the role."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk([choice]) | self._prompt_ids(answer)

    def chunk(self, index: int, answer: Answer, emission: Emission) -> dict[str, Any]:  # noqa: ARG002 - Shape's
        """Return the chunk for `emission`."""
        return self._chunk([self._choice({"delta": {"content": emission.text}}, emission)])

    def last_chunk(self) -> dict[str, Any]:
        """Return the chunk without choices."""
        return self._chunk([])

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the one answer that a conversation has."""
        (answer,) = answers
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        choice = self._choice({"message": message}, answer.whole)
        return _response("chat.completion", self._heading, [choice]) | self._prompt_ids(answer)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return _response("chat.completion.chunk", self._heading, choices)

    def _prompt_ids(self, answer: Answer) -> dict[str, Any]:
        return {"prompt_token_ids": answer.ask.prompt} if self._heading.wants_token_ids else {}

    def _choice(self, said: dict[str, Any], emission: Emission) -> dict[str, Any]:
        logprobs = {"content": list(map(self._logprob, emission.logprobs))} if emission.logprobs else None
        choice = {"index": 0, **said, "logprobs": logprobs, **_ending(emission)}
        return choice | _token_ids(self._heading, emission)

    def _logprob(self, logprob: TokenLogprob) -> dict[str, Any]:
        top = [self._spelled(token, value) for token, value in logprob.top]
        return {**self._spelled(logprob.token, logprob.logprob), "top_logprobs": top}

    def _spelled(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._spell([token])
        return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}


class CompletionShape:
    """`/v1/completions`."""

    def __init__(self, heading: Heading, spell: Spell) -> None:
        self._heading = heading
        self._spell = spell

    def opening(self, answer: Answer) -> dict[str, Any] | None:  # noqa: ARG002 - Shape's
        """Return nothing: a completion has no role to name."""
        return None

    def chunk(self, index: int, answer: Answer, emission: Emission) -> dict[str, Any]:
        """Return the chunk for `emission`."""
        choice = self._choice(index, emission, before=answer.logprobs)
        if not answer.token_ids:
            choice |= self._prompt_ids(answer)
        return _response("text_completion", self._heading, [choice])

    def last_chunk(self) -> dict[str, Any]:
        """Return the chunk without choices."""
        return _response("text_completion", self._heading, [])

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return every prompt's answer, in the order of the prompts."""
        choices = [
            self._choice(index, answer.whole, before=()) | self._prompt_ids(answer)
            for index, answer in enumerate(answers)
        ]
        return _response("text_completion", self._heading, choices) | _score(answers)

    def _prompt_ids(self, answer: Answer) -> dict[str, Any]:
        return {"prompt_token_ids": answer.ask.prompt} if self._heading.wants_token_ids else {}

    def _choice(self, index: int, emission: Emission, before: Sequence[TokenLogprob]) -> dict[str, Any]:
        logprobs = self._logprobs(emission.logprobs, before) if emission.logprobs else None
        choice = {"index": index, "text": emission.text, "logprobs": logprobs, **_ending(emission)}
        return choice | _token_ids(self._heading, emission)

    def _logprobs(self, logprobs: Sequence[TokenLogprob], before: Sequence[TokenLogprob]) -> dict[str, Any]:
        tokens = [self._spell([logprob.token]) for logprob in logprobs]
        offset = sum(len(self._spell([logprob.token])) for logprob in before)
        offsets = [offset + sum(map(len, tokens[:position])) for position in range(len(tokens))]
        return {
            "text_offset": offsets,
            "token_logprobs": [_finite(logprob.logprob) for logprob in logprobs],
            "tokens": tokens,
            "top_logprobs": list(map(self._top, logprobs)),
        }

    def _top(self, logprob: TokenLogprob) -> dict[str, float]:
        """Keyed by text, as OpenAI has it; of tokens that are spelled alike the likeliest is shown."""
        ranked = [*logprob.top, (logprob.token, logprob.logprob)]
        return {self._spell([token]): _finite(value) for token, value in reversed(ranked)}


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return OpenAI's `usage` over all prompts of a request. An end-of-sequence token counts."""
    prompt = sum(len(answer.ask.prompt) for answer in answers)
    completion = sum(len(answer.token_ids) for answer in answers)
    cached = sum(answer.finish.cached_tokens for answer in answers if answer.finish)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def request_metrics(answer: Answer, finish: Finish, drafter: Drafter) -> dict[str, Any]:
    """Return vLLM's per-request `metrics` and the number of decode forwards, for a finished answer.

    `drafter` is the one that was asked for; a shadow request would have drafted with it.
    """
    times, tokens = finish.times, len(answer.token_ids)
    generating = times.last_token - times.first_token
    return {
        "time_to_first_token_ms": 1e3 * (times.first_token - times.asked),
        "generation_time_ms": 1e3 * generating,
        "queue_time_ms": 1e3 * (times.begun - times.asked),
        "mean_itl_ms": 1e3 * generating / (tokens - 1) if tokens > 1 else None,
        "tokens_per_second": tokens / (times.last_token - times.begun),
        "num_passes": len(finish.steps),
        "speculative_decoding": _speculation(answer, finish, drafter),
    }


def _speculation(answer: Answer, finish: Finish, drafter: Drafter) -> dict[str, Any] | None:
    ask = answer.ask
    if ask.mode is Mode.OFF:
        return None
    if ask.mode is Mode.SHADOW:
        would_be = replay(ask.prompt, answer.token_ids, drafter, [ask.k], ask.origin)[ask.k]
        drafted, accepted = list(would_be.per_step_drafted), list(would_be.per_step_accepted)
    else:
        drafted = [done.drafted for done in finish.steps if done.drafted]
        accepted = [done.accepted for done in finish.steps if done.drafted]
    histogram = Counter(accepted)
    return {
        "mode": ask.mode,
        "method": drafter.name,
        "profile": EMBEDDED.name,
        "num_spec_tokens": ask.k,
        "num_spec_steps": len(drafted),
        "num_draft_tokens": sum(drafted),
        "num_accepted_draft_tokens": sum(accepted),
        "draft_acceptance_rate": sum(accepted) / sum(drafted) if drafted else None,
        "mean_acceptance_length": 1 + sum(accepted) / len(drafted) if drafted else None,
        "acceptance_histogram": [histogram[length] for length in range(ask.k + 1)],
        "per_step_drafted": drafted,
        "per_step_accepted": accepted,
    }


def _response(kind: str, heading: Heading, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": heading.request_id,
        "object": kind,
        "created": heading.created,
        "model": heading.model,
        "choices": choices,
    }


def _ending(emission: Emission) -> dict[str, Any]:
    if emission.finish is None:
        return {"finish_reason": None, "stop_reason": None}
    return {"finish_reason": emission.finish.reason, "stop_reason": emission.finish.stop}


def _score(answers: Sequence[Answer]) -> dict[str, Any]:
    """The target's own choices, where a draft was to be scored."""
    match answers:
        case [answer] if answer.choices:
            ends = [choice in answer.ask.end_ids for choice in answer.choices]
            return {"ace_score": {"choices": answer.choices, "ends": ends}}
    return {}


def _token_ids(heading: Heading, emission: Emission) -> dict[str, Any]:
    return {"token_ids": emission.token_ids} if heading.wants_token_ids else {}


def _finite(logprob: float) -> float:
    return max(logprob, _UNLIKELIEST)
