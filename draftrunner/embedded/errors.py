"""What the embedded backend answers instead of tokens, as one tree. The messages are shown to clients.

RequestRefused             answered in OpenAI's error shape
├── InvalidRequest    400
├── UnknownModel      404
├── BodyTooLarge      413
├── Busy              503  with Retry-After
└── AnswerFailed      500
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestRefused(Exception):
    """Base of the tree.

    Attributes:
        status: HTTP status of the answer.
        kind: OpenAI's `error.type`.
        code: OpenAI's `error.code`.
        param: The request field at fault, if one is.
        headers: Extra response headers.
    """

    status: int = 500
    kind: str = "server_error"
    code: str | None = None
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object, as an answer or a stream event carries it."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


class InvalidRequest(RequestRefused):
    """The request can never be answered as it is."""

    status, kind = 400, "invalid_request_error"


class ContextTooShort(InvalidRequest):
    """Prompt and answer do not fit into the model's context."""

    code = "context_length_exceeded"


class UnknownModel(RequestRefused):
    """The model asked for is not served here."""

    status, kind, code = 404, "invalid_request_error", "model_not_found"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(f"The model {asked[:200]!r} is not served here. Served: {served}.", param="model")


class BodyTooLarge(RequestRefused):
    """The body was not read to its end."""

    status, kind, code = 413, "invalid_request_error", "body_too_large"


class Busy(RequestRefused):
    """The queue is full. Nothing of the request was queued."""

    status, code = 503, "queue_full"
    headers: Mapping[str, str] = {"retry-after": "1"}


class AnswerFailed(RequestRefused):
    """Generating broke off."""

    code = "generation_failed"

    def __init__(self) -> None:
        super().__init__("Generating the answer failed. The backend's log has the details.")
