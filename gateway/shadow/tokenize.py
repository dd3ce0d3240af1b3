"""Token ids of texts: from the files registered for a backend, or from its own `/tokenize`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from jinja2 import TemplateError

from gateway.errors import BackendError, TokenizerUnusable
from gateway.fleet.model import Backend
from gateway.fleet.tokenizer import FileTokenizer, load_tokenizer, tokenizer_file
from gateway.proxy.json_calls import ids_in, json_call, read_object
from gateway.proxy.upstream import BackendPool, Reply

TIMEOUT_S = 10.0
"""Tokenizing takes milliseconds; a backend that needs longer has other work to do."""

MAX_ANSWER_BYTES = 4 * 1024 * 1024

_SAYS_NOTHING = frozenset({401, 403, 408, 429})
"""Statuses that are about this call, not about what the backend can do."""

_TEMPLATE_OPTIONS = ("add_generation_prompt", "continue_final_message", "tools")

logger = logging.getLogger(__name__)


class Tokenize(Protocol):
    """Asks a backend for token ids."""

    async def __call__(self, backend: Backend, payload: Mapping[str, Any]) -> Sequence[int] | None:
        """The ids for a `/tokenize` payload; None when the backend gives none.

        Raises:
            BackendError: it could not be asked.
        """
        ...


class Tokenizers:
    """Takes `/tokenize` payloads in vLLM's shape to whoever can answer them for a backend.

    Args:
        pool: Connections to backends; adds each backend's own key.
    """

    def __init__(self, pool: BackendPool) -> None:
        self._of_backends = BackendTokenizer(pool)
        self._of_files = FileTokenizers()

    async def __call__(self, backend: Backend, payload: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The ids for `payload`; None when there is nobody to give them.

        Raises:
            BackendError: The backend could not be asked, or failed.
        """
        if backend.tokenizer is None:
            return await self._of_backends(backend, payload)
        # In a thread, because a long text takes milliseconds that other requests would wait for.
        return await asyncio.to_thread(self._of_files, backend.tokenizer, payload)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A tokenizer as its file was at one moment; None for a file that holds none."""

    changed_at: int
    tokenizer: FileTokenizer | None


class FileTokenizers:
    """Answers from registered files, each loaded when it is first needed and again after it has changed."""

    def __init__(self) -> None:
        self._loaded: dict[str, _Loaded] = {}

    def __call__(self, path: str, payload: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The ids for `payload`; None when the files have gone, or cannot say this conversation."""
        tokenizer = self._current(path)
        if tokenizer is None:
            return None
        try:
            return _ids_by(tokenizer, payload)
        except TemplateError:
            return None

    def _current(self, path: str) -> FileTokenizer | None:
        try:
            changed_at = tokenizer_file(path).stat().st_mtime_ns
        except (TokenizerUnusable, OSError):
            changed_at = 0
        known = self._loaded.get(path)
        if known is None or known.changed_at != changed_at:
            known = self._loaded[path] = _Loaded(changed_at, _load(path))
        return known.tokenizer


def _load(path: str) -> FileTokenizer | None:
    try:
        return load_tokenizer(path)
    except TokenizerUnusable as error:
        logger.warning("Answers whose ids it was to give are not measured: %s", error)
        return None


def _ids_by(tokenizer: FileTokenizer, payload: Mapping[str, Any]) -> tuple[int, ...]:
    text, special = payload.get("prompt"), True
    if "messages" in payload:
        if payload.get("chat_template") is not None:
            raise TemplateError("templates of clients are not run here")
        how = {"add_generation_prompt": True} | {
            name: payload[name] for name in _TEMPLATE_OPTIONS if name in payload
        }
        text = tokenizer.text_of(payload["messages"], options=payload.get("chat_template_kwargs"), **how)
        special = False  # the template spells them
    return tokenizer.ids_of(str(text), add_special_tokens=bool(payload.get("add_special_tokens", special)))


class BackendTokenizer:
    """Asks `/tokenize` in vLLM's shape.

    Args:
        pool: Connections to backends; adds each backend's own key.
    """

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool

    async def __call__(self, backend: Backend, payload: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The ids for `payload`; None when the backend has no such route, refuses, or answers otherwise.

        Raises:
            BackendError: It could not be asked, or failed.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._pool.open(backend, json_call("/tokenize", payload))
                try:
                    return await self._ids(backend, reply)
                finally:
                    reply.close()
        except TimeoutError:
            raise BackendError(f"Backend {backend.name!r} gave no token ids in {TIMEOUT_S:g} s.") from None

    async def _ids(self, backend: Backend, reply: Reply) -> tuple[int, ...] | None:
        if reply.status >= 500 or reply.status in _SAYS_NOTHING:
            raise BackendError(f"Backend {backend.name!r} answered HTTP {reply.status} to /tokenize.")
        if reply.status != HTTPStatus.OK:
            return None
        answer = await read_object(reply, limit=MAX_ANSWER_BYTES)
        return None if answer is None else ids_in(answer.get("tokens"))
