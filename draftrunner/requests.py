"""What the draft runner's routes share: the fields they take, and what they answer instead of a result.

ServiceError                    answered in OpenAI's error shape
├── InvalidRequest         400
├── Unauthorised           401
├── RequestTooLarge        413
├── CallerLeft             499  seen by nobody
└── Busy                   503  with Retry-After
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError
from starlette.requests import HTTPConnection

from draftrunner.model import MAX_LOOKAHEAD

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Tenant = Annotated[str, Field(strict=True, max_length=256)]
Lookahead = Annotated[int, Field(strict=True, ge=1, le=MAX_LOOKAHEAD)]


Text = TypeVar("Text", str, bytes)
Value = TypeVar("Value")


class ServiceError(Exception):
    """Base of the tree.

    Attributes:
        status: HTTP status of the answer.
        code: Machine-readable name.
        kind: OpenAI's `error.type`.
        headers: Extra response headers.
    """

    status, code, kind = 500, "internal_error", "server_error"
    headers: Mapping[str, str] = {}


class InvalidRequest(ServiceError):
    """The body is not what the route takes; the message says where and what is allowed."""

    status, code, kind = 400, "invalid_request", "invalid_request_error"


class Unauthorised(ServiceError):
    """No runner token, or another one."""

    status, code, kind = 401, "invalid_runner_token", "authentication_error"
    headers: Mapping[str, str] = {"www-authenticate": "Bearer"}

    def __init__(self) -> None:
        super().__init__(
            "Send `Authorization: Bearer TOKEN` with the token that this runner was started with."
        )


class RequestTooLarge(ServiceError):
    """More bytes or ids than one replay may hold."""

    status, code, kind = 413, "request_too_large", "invalid_request_error"


class CallerLeft(ServiceError):
    """Nobody waits for the answer, so it was not worked out."""

    status, code = 499, "caller_left"


class Busy(ServiceError):
    """As much is going on as may."""

    status, code = 503, "runner_busy"
    headers: Mapping[str, str] = {"retry-after": "1"}

    def __init__(self, doing: str, limit: int) -> None:
        super().__init__(
            f"This runner {doing} {limit} answers at once, and is doing so. Try again in a second."
        )


class Slots:
    """Counts what runs at once.

    Args:
        doing: What a slot is for, as in "replays".
        limit: How many there are.
    """

    def __init__(self, doing: str, limit: int) -> None:
        self._doing = doing
        self._limit = limit
        self._taken = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a slot for the enclosed block, or raise Busy at once."""
        if self._taken >= self._limit:
            raise Busy(self._doing, self._limit)
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


def check_bearer(connection: HTTPConnection, token: str) -> None:
    """Raise Unauthorised unless the caller sent `token`."""
    sent = connection.headers.get("authorization", "").encode("latin-1")
    if not hmac.compare_digest(sent, f"Bearer {token}".encode()):
        raise Unauthorised


def check_known(field: str, name: str, table: Mapping[str, object]) -> None:
    """Raise InvalidRequest, with what is allowed, unless `name` is in `table`."""
    if name not in table:
        allowed = ", ".join(sorted(table)) or "none"
        raise InvalidRequest(f"{field}: {name[:100]!r} is not known. Allowed: {allowed}.")


def valid(read: Callable[[Text], Value], text: Text) -> Value:
    """What `read`, a validator of pydantic's, makes of a JSON text; or raise InvalidRequest, saying where."""
    try:
        return read(text)
    except ValidationError as error:
        raise InvalidRequest(_complaints(error)) from None


def _complaints(error: ValidationError) -> str:
    """What is wrong where, without the values sent; cut short, as unknown fields may be many and long."""
    told = "; ".join(
        f"{'.'.join(map(str, complaint['loc'])) or 'body'}: {complaint['msg']}"
        for complaint in error.errors(include_url=False, include_context=False, include_input=False)
    )
    return told[:1000]
