"""One streamed chat request through the official `openai` client, as an Answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.demo.failure import DemoFailed
from gateway.evidence.engine_metrics import read_engine_metrics

if TYPE_CHECKING:
    import openai

_TIME_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request came back with.

    Attributes:
        ids: Of the answer; empty where the server does not show them.
        text: The answer.
        decode_tokens: Tokens after the first emission.
        decode_seconds: From the first token to the last, by the engine's own clock; 0 where no engine
            saw the whole answer.
    """

    request_id: str
    prompt_ids: tuple[int, ...] = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)
    text: str = field(repr=False)
    decode_tokens: int
    decode_seconds: float

    @property
    def speed(self) -> tuple[float, float]:
        """(decode tokens, decode seconds)."""
        return self.decode_tokens, self.decode_seconds


class ChatClient:
    """Asks one server as one tenant, greedily; the ids and times come from the engine.

    Args:
        url: The server's base URL, without `/v1`.
        key: API key; a server that asks for none takes any.
    """

    def __init__(self, *, url: str, key: str, model: str) -> None:
        import openai

        self._model = model
        self._failures: type[Exception] = openai.OpenAIError
        self._openai = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key=key,
            timeout=_TIME_LIMIT_S,
            max_retries=0,
            # A proxy for the outside world cannot reach this machine's own addresses.
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )

    def close(self) -> None:
        """Close its connections."""
        self._openai.close()

    def ask(
        self,
        text: str,
        *,
        request_id: str,
        workload: str,
        max_tokens: int,
        extra_body: dict[str, Any] | None = None,
        plain_fields: bool = False,
    ) -> Answer:
        """Send one user message and read the answer of at most `max_tokens` to its end.

        Args:
            text: The message.
            request_id: Names the request in every record.
            workload: What it stands for.
            max_tokens: Longest answer.
            extra_body: Further request fields.
            plain_fields: Ask for nothing beyond OpenAI's own fields, so for no token ids or times either.

        Raises:
            DemoFailed: There was no complete answer, or one without the token ids and times asked for.
        """
        extra = (extra_body or {}) | ({} if plain_fields else {"return_token_ids": True})
        stream = self._stream(text, request_id, workload, max_tokens, extra)
        try:
            with stream as chunks:
                read = read_text if plain_fields else read_answer
                return read(request_id, (chunk.model_dump() for chunk in chunks))
        except self._failures as error:
            raise DemoFailed(f"The answer to request {request_id} broke off: {error}") from error

    def _stream(
        self, text: str, request_id: str, workload: str, max_tokens: int, extra_body: dict[str, Any]
    ) -> openai.Stream[Any]:
        try:
            return self._openai.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": text}],
                temperature=0,
                max_tokens=max_tokens,
                stream=True,
                stream_options={"include_usage": True},
                extra_headers={"x-request-id": request_id, "x-ace-workload": workload},
                extra_body=extra_body,
            )
        except self._failures as error:
            raise DemoFailed(f"Request {request_id} was not answered: {error}") from error


def read_answer(request_id: str, chunks: Iterable[Mapping[str, Any]]) -> Answer:
    """Put a stream's chunks together, with the engine's token ids and times.

    Raises:
        DemoFailed: The stream carries no token ids, or no usage chunk with the engine's times.
    """
    whole = _put_together(chunks)
    numbers = read_engine_metrics(whole.usage, whole.metrics)
    ids = len(whole.ids)
    if numbers.completion_tokens != ids or not numbers.decode_tokens or not numbers.decode_seconds:
        raise DemoFailed(
            f"The answer to request {request_id} cannot be measured: {ids} token ids, "
            f"{numbers.completion_tokens} tokens in its usage, decode seconds {numbers.decode_seconds}."
        )
    return Answer(
        request_id=request_id,
        prompt_ids=whole.prompt_ids,
        ids=tuple(whole.ids),
        text="".join(whole.text),
        decode_tokens=numbers.decode_tokens,
        decode_seconds=numbers.decode_seconds,
    )


def read_text(request_id: str, chunks: Iterable[Mapping[str, Any]]) -> Answer:
    """Put a stream's text together; its ids and times are left to others.

    Raises:
        DemoFailed: The stream has no usage chunk.
    """
    whole = _put_together(chunks)
    if not whole.usage:
        raise DemoFailed(f"The answer to request {request_id} came without its usage.")
    return Answer(
        request_id=request_id,
        prompt_ids=(),
        ids=(),
        text="".join(whole.text),
        decode_tokens=0,
        decode_seconds=0.0,
    )


@dataclass(slots=True)
class _Whole:
    """A stream's chunks, put together."""

    prompt_ids: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    usage: object = None
    metrics: object = None


def _put_together(chunks: Iterable[Mapping[str, Any]]) -> _Whole:
    whole = _Whole()
    for chunk in chunks:
        whole.prompt_ids = tuple(chunk.get("prompt_token_ids") or whole.prompt_ids)
        for choice in chunk.get("choices") or ():
            whole.ids += choice.get("token_ids") or ()
            whole.text.append(choice["delta"].get("content") or "")
        whole.usage = chunk.get("usage") or whole.usage
        whole.metrics = chunk.get("metrics") or whole.metrics
    return whole
