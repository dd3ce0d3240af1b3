"""The small JSON calls that a loop makes of its backend, over the data plane's connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from gateway.errors import BackendError, BackendHungUp
from gateway.fleet.model import Backend
from gateway.proxy.json_calls import json_call, read_object
from gateway.proxy.upstream import BackendPool, Reply

MAX_ANSWER_BYTES = 16 * 2**20
"""Room for the prompt ids that some servers repeat beside each of seventeen choices."""


async def open_call(pool: BackendPool, backend: Backend, path: str, asked: Mapping[str, Any]) -> Reply:
    """The head of a POST's answer, which is HTTP 200. The caller closes it.

    A kept connection that closes without a byte is replaced once: the call cannot have run.

    Args:
        pool: Connections; adds the backend's own key.
        backend: Where to.
        path: Below the backend's URL.
        asked: The body.

    Raises:
        BackendError: It could not be asked, or answered with another status.
    """
    call = json_call(path, asked)
    try:
        reply = await pool.open(backend, call)
    except BackendHungUp:
        reply = await pool.open(backend, call, fresh=True)
    if reply.status == HTTPStatus.OK:
        return reply
    reply.close()
    raise BackendError(f"Backend {backend.name!r} answered HTTP {reply.status} to {path}.")


async def ask_json(
    pool: BackendPool, backend: Backend, path: str, asked: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The JSON object that a POST is answered with.

    Raises:
        BackendError: It could not be asked, or answered with something else.
    """
    reply = await open_call(pool, backend, path, asked)
    try:
        answer = await read_object(reply, limit=MAX_ANSWER_BYTES)
    finally:
        reply.close()
    if answer is None:
        raise BackendError(
            f"Backend {backend.name!r} answered {path} with something that is no JSON object of at most "
            f"{MAX_ANSWER_BYTES} bytes."
        )
    return answer


async def detokenize(pool: BackendPool, backend: Backend, model: str, ids: Sequence[int]) -> str:
    """The text of `ids`; special tokens are left out by servers that can.

    Raises:
        BackendError: The backend could not be asked, or gave no text.
    """
    if not ids:
        return ""
    asked = {"model": model, "tokens": ids, "skip_special_tokens": True}
    text = (await ask_json(pool, backend, "/detokenize", asked)).get("prompt")
    if not isinstance(text, str):
        raise BackendError(f"Backend {backend.name!r} answered /detokenize without a text.")
    return text
