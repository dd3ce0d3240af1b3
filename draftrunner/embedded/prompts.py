"""From request bodies to token ids, and from ids back to text."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import jinja2

from draftrunner.embedded.api import (
    DEFAULT_COMPLETION_TOKENS,
    NEUTRAL,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    Message,
    OpenBody,
    TokenizeBody,
)
from draftrunner.embedded.errors import ContextTooShort, InvalidRequest
from draftrunner.embedded.generation import Ask
from draftrunner.embedded.target import LanguageModel
from draftrunner.model import Origin

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Tokenizer:
    """A model's tokenizer and chat template. Safe to use from several threads, one at a time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`."""
        with self._lock:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out."""
        return self.decoded(ids, skip_special_tokens=True)

    def decode_all(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens spelled out."""
        return self.decoded(ids, skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spelling of each id."""
        with self._lock:
            return [str(piece) for piece in self._tokenizer.convert_ids_to_tokens(list(ids))]

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the conversation as the model's chat template spells it.

        Raises:
            InvalidRequest: There is no template, or it does not accept the messages.
        """
        if self._tokenizer.chat_template is None:
            raise InvalidRequest(
                "This model has no chat template. Use /v1/completions with a prompt.", param="messages"
            )
        turns = [{"role": message.role, "content": message.text} for message in messages]
        try:
            with self._lock:
                return str(
                    self._tokenizer.apply_chat_template(
                        turns, tokenize=False, add_generation_prompt=add_generation_prompt
                    )
                )
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses the messages: {error}", param="messages"
            ) from error

    def decoded(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `ids`."""
        with self._lock:
            return str(
                self._tokenizer.decode(
                    list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
                )
            )


class AskReader:
    """Makes the engine's asks of request bodies.

    Args:
        tokenizer: The model's.
        model: Says what fits.
        drafters: Names of those that a request may ask for.
        now: Unix time.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: LanguageModel,
        drafters: Collection[str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._drafters = drafters
        self._now = now

    def chat(self, body: ChatBody) -> Ask:
        """Read a conversation.

        Raises:
            InvalidRequest: It does not fit the template or the context, or asks for what is not implemented.
        """
        _refuse_unsupported(body)
        text = self._tokenizer.render(body.messages, add_generation_prompt=True)
        prompt = self._tokenizer.encode(text, add_special_tokens=False)
        most = self._room(prompt, "messages")
        return self._ask(
            body, prompt, body.max_completion_tokens or body.max_tokens, most, most, body.alternatives
        )

    def completion(self, body: CompletionBody) -> list[Ask]:
        """Read every prompt of the body.

        Raises:
            InvalidRequest: There is no prompt; one is empty, unknown to the vocabulary or does not fit; or
                the body asks for what is not implemented.
        """
        _refuse_unsupported(body)
        if not body.prompts:
            raise InvalidRequest("prompt holds no prompt. Give a text or token ids.", param="prompt")
        asks = []
        for given in body.prompts:
            prompt = (
                self._tokenizer.encode(given, add_special_tokens=True) if isinstance(given, str) else given
            )
            most = self._room(prompt, "prompt")
            default = min(DEFAULT_COMPLETION_TOKENS, most)
            asks.append(self._ask(body, prompt, body.max_tokens, default, most, body.logprobs))
        return asks

    def tokenize(self, body: TokenizeBody) -> tuple[list[int], list[str]]:
        """Return the ids of a text, or of a conversation as `chat` would read it, and how each is spelled.

        Raises:
            InvalidRequest: The conversation does not fit the template, or the body asks for what is not
                implemented.
        """
        _refuse_unsupported(body)
        if body.messages is None:
            text, add_special_tokens = body.prompt or "", True
        else:
            # A template spells its own.
            text, add_special_tokens = (
                self._tokenizer.render(
                    body.messages, add_generation_prompt=body.add_generation_prompt is not False
                ),
                False,
            )
        if body.add_special_tokens is not None:
            add_special_tokens = body.add_special_tokens
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids, self._tokenizer.pieces(ids)

    def detokenize(self, body: DetokenizeBody) -> str:
        """Return the text of ids, special tokens included unless the body says otherwise.

        Raises:
            InvalidRequest: One of them is not in the vocabulary.
        """
        self._check_known(body.tokens, "tokens")
        return self._tokenizer.decoded(body.tokens, skip_special_tokens=body.skip_special_tokens)

    def _check_known(self, ids: Sequence[int], param: str) -> None:
        highest = max(ids, default=0)
        if highest >= self._model.vocabulary_size:
            raise InvalidRequest(
                f"{param} holds token id {highest}. Ids are below {self._model.vocabulary_size}.", param=param
            )

    def _room(self, prompt: Sequence[int], param: str) -> int:
        """How many tokens fit after `prompt`."""
        if not prompt:
            raise InvalidRequest(f"{param} is empty. Give at least one token.", param=param)
        self._check_known(prompt, param)
        if len(prompt) >= self._model.context_length:
            raise ContextTooShort(
                f"This model's maximum context length is {self._model.context_length} tokens, and the prompt "
                f"has {len(prompt)}. Shorten it to leave room for an answer.",
                param=param,
            )
        return self._model.context_length - len(prompt)

    def _ask(
        self,
        body: GenerationBody,
        prompt: Sequence[int],
        asked: int | None,
        default: int,
        most: int,
        alternatives: int | None,
    ) -> Ask:
        if asked is not None and asked > most:
            raise ContextTooShort(
                f"This model's maximum context length is {self._model.context_length} tokens, and max_tokens "
                f"{asked} together with a prompt of {len(prompt)} exceeds it. Allowed here: up to {most}.",
                param="max_tokens",
            )
        speculation = body.speculation
        self._check_drafter(speculation.ace_drafter)
        return Ask(
            prompt=tuple(prompt),
            max_tokens=default if asked is None else asked,
            sampling=body.sampling,
            stop_strings=tuple(body.stop or ()),
            end_ids=frozenset() if body.ignore_eos else self._model.end_ids,
            stop_ids=frozenset(body.stop_token_ids or ()),
            alternatives=alternatives,
            mode=speculation.ace_mode,
            k=speculation.ace_k,
            drafter=speculation.ace_drafter,
            origin=Origin(tenant=speculation.ace_tenant, as_of=self._now()),
            draft_length=speculation.ace_score,
        )

    def _check_drafter(self, name: str) -> None:
        if name not in self._drafters:
            raise InvalidRequest(
                f"vllm_xargs.ace_drafter: {name[:100]!r} is not known. "
                f"Allowed: {', '.join(sorted(self._drafters))}.",
                param="vllm_xargs",
            )


def _refuse_unsupported(body: OpenBody) -> None:
    if (field := body.unsupported) is not None:
        allowed = ", ".join(map(json.dumps, (*NEUTRAL[field], None)))
        raise InvalidRequest(
            f"{field} is not supported by this backend. Leave it out or send what has no effect: {allowed}.",
            param=field,
        )
