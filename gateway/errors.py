"""Every failure of the gateway, as one tree.

GatewayError
├── RequestError                    the client's request cannot be served as it stands
│   ├── MalformedRequest       400
│   ├── InvalidKey             401
│   ├── NotAllowed             403
│   ├── UnknownModel           404
│   ├── UnknownRoute           404
│   ├── MethodNotAllowed       405
│   ├── NotFound               404  (control plane)
│   ├── Conflict               409  (control plane)
│   ├── BodyTooLarge           413
│   └── UnsupportedEncoding    415
├── BackendError                    a model server failed us
│   ├── BackendUnreachable     502  nothing was sent; another backend may be tried
│   ├── CredentialMissing      502  nothing was sent; another backend may be tried
│   ├── BackendHungUp          502  a reused connection closed without a byte; another may be tried
│   ├── BackendBrokeOff        502  the request may have run; never tried again
│   ├── GatewayStopping        503  the gateway's own process ends, and with it the call
│   ├── BackendTimeout         504  the request may have run; never tried again
│   └── NoBackendUp            503
├── CalibrationFailed          503  a step of the loop could not be timed on a backend
├── StoreError                 503  the database cannot be used now; the data plane goes on without it
│   ├── KillNotStored          503  nothing was killed; says how to do so without the store
│   └── StoreRefused           503  it will not take us as we are set up; waiting does not help
└── ConfigError                     found at start or reload, shown to the operator
    ├── SettingsError
    ├── PolicyError
    ├── FleetError             400  the fleet file
    └── TokenizerUnusable  400  the files named for a backend's tokenizer

Foreign exceptions become one of these where they enter our code.
"""

from __future__ import annotations

from typing import Any


class GatewayError(Exception):
    """Base of the tree.

    Attributes:
        status: HTTP status of the answer.
        code: Machine-readable name, also the request's ending in records.
        kind: OpenAI's `error.type`.
        try_another_backend: Whether the request cannot have run, so another backend may be asked.
        headers: Extra response headers.
    """

    status = 500
    code = "internal_error"
    kind = "server_error"
    try_another_backend = False
    headers: tuple[tuple[str, str], ...] = ()

    def body(self) -> dict[str, Any]:
        """The answer in OpenAI's error shape."""
        return {"error": {"message": str(self), "type": self.kind, "param": None, "code": self.code}}


class RequestError(GatewayError):
    """The client's request cannot be served as it stands."""

    status, code, kind = 400, "invalid_request", "invalid_request_error"


class MalformedRequest(RequestError):
    """The body is not what the route takes; the message says where and what is allowed."""


class InvalidKey(RequestError):
    """No key, or one that is not known."""

    status, code, kind = 401, "invalid_api_key", "authentication_error"
    headers = (("www-authenticate", "Bearer"),)


class NotAllowed(RequestError):
    """Known to us, and refused."""

    status, code, kind = 403, "not_allowed", "permission_error"


class UnknownModel(RequestError):
    """No registered backend lists the model."""

    status, code = 404, "model_not_found"

    def __init__(self, model: str, known: tuple[str, ...]) -> None:
        shown = (
            ", ".join(repr(name) for name in known[:20]) or "none yet; register one with `ace backends add`"
        )
        super().__init__(f"The model {model[:200]!r} does not exist here. Models being served: {shown}.")


class UnknownRoute(RequestError):
    """The gateway does not serve this path."""

    status, code = 404, "unknown_route"


class MethodNotAllowed(RequestError):
    """The path is served, and not with this method."""

    status, code = 405, "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: str) -> None:
        super().__init__(f"{path} does not take {method[:20]}. Use {allowed}.")
        self.headers = (("allow", allowed),)


class NotFound(RequestError):
    """A control-plane object that does not exist."""

    status, code = 404, "not_found"


class Conflict(RequestError):
    """A control-plane object that exists already, or a write the current settings do not allow."""

    status, code = 409, "conflict"


class BodyTooLarge(RequestError):
    """More body bytes than the limit."""

    status, code = 413, "request_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request body is larger than {limit} bytes. Send less, or "
            "raise ACE_MAX_BODY_BYTES on the gateway."
        )


class UnsupportedEncoding(RequestError):
    """A compressed request body."""

    status, code = 415, "unsupported_content_encoding"


class BackendError(GatewayError):
    """A model server failed us."""

    status, code, kind = 502, "backend_error", "upstream_error"


class BackendUnreachable(BackendError):
    """No connection could be opened. Nothing was sent."""

    code, try_another_backend = "backend_unreachable", True

    def __init__(self, backend: str, cause: str) -> None:
        super().__init__(
            f"Backend {backend!r} did not accept a connection ({cause}). See `ace backends show {backend}`."
        )


class CredentialMissing(BackendError):
    """The backend's key cannot be read, so nothing was sent to it."""

    code, try_another_backend = "backend_credential_missing", True


class BackendHungUp(BackendError):
    """A reused connection closed without a byte, so the request cannot have run."""

    code, try_another_backend = "backend_hung_up", True

    def __init__(self, backend: str) -> None:
        super().__init__(f"Backend {backend!r} closed an idle connection as the request was being sent.")


class BackendBrokeOff(BackendError):
    """The connection ended before the answer did. The request may have run."""

    code = "backend_broke_off"

    def __init__(self, backend: str) -> None:
        super().__init__(f"Backend {backend!r} closed the connection before its answer was complete.")


class GatewayStopping(BackendError):
    """The gateway ended the call itself, because its process must end."""

    status, code, kind = 503, "gateway_stopping", "server_error"
    headers = (("retry-after", "1"),)

    def __init__(self, backend: str) -> None:
        super().__init__(
            f"This gateway process is stopping, and ended its call to backend {backend!r} before the answer "
            "was complete. Send the request again; ACE_DRAIN_TIMEOUT_S is how long a stop waits for answers."
        )


class BackendTimeout(BackendError):
    """A wait for the backend ran out. The request may have run."""

    status, code = 504, "backend_timeout"

    def __init__(self, backend: str, seconds: float, waiting_for: str, setting: str) -> None:
        super().__init__(
            f"Backend {backend!r} sent no {waiting_for} for {seconds:g} s. "
            f"Raise {setting} if it needs longer, or look at its load."
        )


class NoBackendUp(BackendError):
    """Every backend that could serve the request is down."""

    status, code = 503, "no_backend_up"
    headers = (("retry-after", "5"),)


class CalibrationFailed(GatewayError):
    """A step of the gateway's loop could not be timed; the message says why."""

    status, code, kind = 503, "calibration_failed", "server_error"

    def __init__(self, backend: str, why: str) -> None:
        super().__init__(
            f"Backend {backend!r} could not be calibrated: {why}. "
            f"Try `ace backends calibrate {backend}` when that has changed."
        )


class StoreError(GatewayError):
    """The database cannot be used now. The data plane goes on without it."""

    status, code, kind = 503, "store_unavailable", "server_error"
    headers = (("retry-after", "5"),)

    def __init__(self, store: str, cause: str, remedy: str | None = None) -> None:
        remedy = remedy or "Look at the disk or the database server, then try again."
        super().__init__(f"The store {store} cannot be used: {cause.rstrip('.')}. {remedy}")


class StoreRefused(StoreError):
    """The database server will not take us as we are set up; waiting does not help."""


class KillNotStored(StoreError):
    """A kill could not be stored, so nothing was killed."""

    code = "kill_not_stored"

    def __init__(self, why: str, file: str) -> None:
        GatewayError.__init__(
            self,
            f"NOTHING WAS KILLED: {why} To kill without the store, on each replica: touch {file} "
            "(empty it kills everything; lines `tenant NAME`, `model NAME` or `backend NAME` narrow that).",
        )


class ConfigError(GatewayError):
    """Found at start or reload, shown to the operator."""

    code, kind = "config_error", "config_error"


class SettingsError(ConfigError):
    """A flag or environment variable that is not known, or has a value that is not allowed."""


class PolicyError(ConfigError):
    """A policy that cannot be loaded. `str()` is one complaint per line, each `file:line: ...`."""

    status, code = 400, "policy_invalid"


class FleetError(ConfigError):
    """A fleet file that cannot be loaded. `str()` is one complaint per line, each `file:line: ...`."""

    status, code = 400, "fleet_invalid"


class TokenizerUnusable(ConfigError):
    """The files that an operator named for a backend's tokenizer cannot be read as one."""

    status, code = 400, "tokenizer_unusable"
