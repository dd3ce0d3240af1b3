"""Request bodies: what is understood, what is refused because it would change the output, what is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from draftrunner.embedded.generation import Mode
from draftrunner.embedded.sampling import Sampling
from draftrunner.model import MAX_LOOKAHEAD

MAX_STOP_STRINGS = 4
MAX_PLAIN = 1024
"""Most requests that one call turns plain."""
MAX_LOGPROBS = 20
DEFAULT_LOOKAHEAD = 5
DEFAULT_DRAFTER = "ngram"
DEFAULT_COMPLETION_TOKENS = 16

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Fields that would change the output and are not implemented, each with the values that change nothing.

Null changes nothing in any of them."""


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


TokenId = Annotated[int, Field(ge=0)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class Extras(BaseModel):
    """`vllm_xargs`, as far as it is ours: the `in_engine` contract, and drafts to be scored.

    Attributes:
        ace_plain: Values of `x-request-id`: for those requests, wherever they are, no more is drafted.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    ace_mode: Annotated[Mode, Field(strict=False)] = Mode.OFF
    ace_k: Annotated[int, Field(ge=1, le=MAX_LOOKAHEAD)] = DEFAULT_LOOKAHEAD
    ace_score: Annotated[int, Field(ge=0, le=MAX_LOOKAHEAD)] | None = None
    ace_drafter: str = DEFAULT_DRAFTER
    ace_tenant: Annotated[str, Field(max_length=256)] = ""
    ace_plain: Annotated[list[NonEmpty], Field(max_length=MAX_PLAIN)] = []


class StreamOptions(BaseModel):
    """What a stream carries beside the answer."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class OpenBody(BaseModel):
    """A body that keeps the fields it does not know, so that those which matter can be refused."""

    model_config = ConfigDict(extra="allow", strict=True)

    @property
    def unsupported(self) -> str | None:
        """Name of a field whose value asks for something that is not implemented; None if there is none."""
        for name, value in (self.model_extra or {}).items():
            if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
                return name
        return None


class GenerationBody(OpenBody):
    """The fields that chat and plain completions share."""

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[
        Annotated[list[NonEmpty], Field(max_length=MAX_STOP_STRINGS)] | None, BeforeValidator(_one_or_many)
    ] = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    vllm_xargs: Extras | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream: true")
        return self

    @property
    def sampling(self) -> Sampling:
        """How tokens are to be chosen; OpenAI's defaults where nothing is said."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            seed=self.seed,
        )

    @property
    def speculation(self) -> Extras:
        """Mode, K and drafter, off when the request does not say; and the length of a draft to be scored."""
        return self.vllm_xargs or Extras()

    @property
    def wants_stream_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


class TextPart(BaseModel):
    """One part of a message's content. Other kinds than text are refused."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: str
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """The content as the chat template takes it."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(GenerationBody):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is only allowed with logprobs: true")
        return self

    @model_validator(mode="after")
    def _drafts_are_ids(self) -> ChatBody:
        if self.speculation.ace_score is not None:
            raise ValueError("vllm_xargs.ace_score is only allowed in /v1/completions")
        return self

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to report per token; None for no log-probabilities at all."""
        return self.top_logprobs or 0 if self.logprobs else None


class CompletionBody(GenerationBody):
    """Body of `/v1/completions`."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _a_draft_is_scored_alone(self) -> CompletionBody:
        draft_length = self.speculation.ace_score
        if draft_length is not None and (missing := self._missing_to_score(draft_length)):
            raise ValueError(f"vllm_xargs.ace_score needs {missing}")
        return self

    def _missing_to_score(self, draft_length: int) -> str | None:
        match self.prompts:
            case [list(prompt)] if len(prompt) > draft_length:
                pass
            case _:
                return "one prompt of token ids, longer than the draft"
        if self.max_tokens != 1:
            return "max_tokens: 1"
        if self.speculation.ace_mode is not Mode.OFF:
            return "ace_mode: off"
        if self.stream or self.stop or self.stop_token_ids or self.logprobs is not None:
            return "a request without stream, stop, stop_token_ids and logprobs"
        return None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt of the call, as text or token ids."""
        given: Any = self.prompt
        several = isinstance(given, list) and not (given and isinstance(given[0], int))
        return list(given) if several else [given]


class TokenizeBody(OpenBody):
    """Body of `/tokenize`: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(BaseModel):
    """Body of `/detokenize`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool = False


def complaints(error: ValidationError) -> tuple[str, str | None]:
    """Say what is wrong where, without the values sent; and which field is at fault."""
    found = error.errors(include_url=False, include_input=False)
    # Validation of a field with several forms reports on each; the first few say enough.
    told = "; ".join(": ".join(filter(None, (_path(one), _what(one)))) for one in found[:4])
    return told, _path(found[0]).partition(".")[0] or None


def _what(complaint: ErrorDetails) -> str:
    return complaint["msg"].removeprefix("Value error, ")


def _path(complaint: ErrorDetails) -> str:
    return ".".join(map(str, complaint["loc"]))
