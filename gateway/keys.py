"""Who may use the gateway: API keys of tenants, the operator's admin token, the draft runners' token."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from gateway.errors import InvalidKey, NotFound, SettingsError, StoreError
from gateway.names import check_name
from gateway.store.model import StoredKey
from gateway.store.store import Store

logger = logging.getLogger(__name__)

ANONYMOUS = "anonymous"

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedKey:
    """A new key, at the only moment at which it is known.

    Attributes:
        secret: The key itself; left out of `repr`.
    """

    stored: StoredKey
    secret: str = field(repr=False)


class KeyRing:
    """The keys that are good, in memory, kept up with a store that other processes share.

    Args:
        store: Where hashes are kept.
        clock: Unix time.
        anonymous_allowed: Whether a request without a key is served, as tenant `anonymous`. Only for a
            gateway that nothing but this machine can reach.
    """

    def __init__(self, *, store: Store, clock: Callable[[], float], anonymous_allowed: bool) -> None:
        self._store = store
        self._clock = clock
        self._anonymous_allowed = anonymous_allowed
        self._tenants: Mapping[str, str] | None = None
        self._admin_sha256: str | None = None
        self._changes: int | None = None
        # One load at a time, or a slow one would bring back a key that has been revoked meanwhile.
        self._loading = asyncio.Lock()

    @property
    def loaded(self) -> bool:
        """Whether the store has been read at least once."""
        return self._tenants is not None

    def identify(self, authorization: bytes | None) -> str:
        """The tenant that a request's `Authorization` header speaks for.

        Raises:
            InvalidKey: A key is needed and missing, or was given and is not good.
            StoreError: The keys have never been read, so none can be judged.
        """
        if authorization is None and self._anonymous_allowed:
            return ANONYMOUS
        secret = _bearer(authorization)
        if self._tenants is None:
            raise StoreError("of API keys", "it has not been read since the gateway started")
        # Found by hash: how long that takes tells nothing about a key that hashes to something else.
        tenant = self._tenants.get(_hash(secret))
        if tenant is None:
            raise InvalidKey("The API key is not known or was revoked. Ask an operator: `ace keys add`.")
        return tenant

    def check_admin(self, authorization: bytes | None) -> None:
        """Let the holder of the admin token pass.

        Raises:
            InvalidKey: The admin token is missing or another one.
        """
        given = _hash(_bearer(authorization))
        if self._admin_sha256 is None or not hmac.compare_digest(given, self._admin_sha256):
            raise InvalidKey(
                "This is not the admin token. It was printed once at the gateway's first start; "
                "to replace it, restart the gateway with ACE_ADMIN_TOKEN set."
            )

    async def issue(self, *, name: str, tenant: str) -> IssuedKey:
        """Make a key for a tenant.

        Raises:
            MalformedRequest: The name or the tenant is not allowed.
            StoreError: The store cannot be used now.
        """
        secret = f"ace-{secrets.token_urlsafe(32)}"
        stored = StoredKey(
            id=secrets.token_hex(6),
            name=check_name("key name", name),
            tenant=check_name("tenant", tenant),
            prefix=secret[:_SHOWN],
            sha256=_hash(secret),
            created_at=self._clock(),
        )
        await self._store.keys.add(stored)
        await self._load()
        return IssuedKey(stored=stored, secret=secret)

    async def all(self) -> tuple[StoredKey, ...]:
        """Every key, revoked ones too, oldest first.

        Raises:
            StoreError: The store cannot be used now.
        """
        return await self._store.keys.all()

    async def revoke(self, key_id: str) -> None:
        """Make a key good no longer, here at once and in other processes at their next sync.

        Raises:
            NotFound: No key has that id.
            StoreError: The store cannot be used now.
        """
        if not await self._store.keys.revoke(key_id, self._clock()):
            raise NotFound(f"No key has the id {key_id[:100]!r}. `ace keys list` shows them.")
        await self._load()

    async def open_admin(self, configured: str | None) -> str | None:
        """Put an admin token in force.

        Args:
            configured: The operator's choice, put in place of any other; None keeps the one in force.

        Returns:
            A new token when there was none: to be printed now, since it is never shown again. Else None.

        Raises:
            StoreError: The store cannot be used now.
        """
        made = None
        if configured is not None:
            if await self._store.meta.admin_token_sha256() != _hash(configured):
                await self._store.meta.set_admin_token_sha256(_hash(configured))
        else:
            token = f"ace-admin-{secrets.token_urlsafe(32)}"
            if await self._store.meta.offer_admin_token_sha256(_hash(token)):
                made = token
        await self._load()
        return made

    async def sync_once(self) -> None:
        """Take over what other processes have changed. While the store is down the last keys stay good."""
        try:
            if await self._store.meta.changes() != self._changes:
                await self._load()
        except StoreError as error:
            logger.debug("keys are kept as they are: %s", error)

    async def run(self, interval_s: float = 0.5) -> None:
        """Sync again and again, until cancelled."""
        while True:
            await self.sync_once()
            await asyncio.sleep(interval_s)

    async def _load(self) -> None:
        async with self._loading:
            # The counter first: a change between the reads is then read again, never missed.
            changes = await self._store.meta.changes()
            admin = await self._store.meta.admin_token_sha256()
            keys = await self._store.keys.all()
            self._tenants = {key.sha256: key.tenant for key in keys if key.revoked_at is None}
            self._admin_sha256 = admin
            self._changes = changes


class RunnerGate:
    """Lets draft runners in by the token that they share with the gateway."""

    def __init__(self, token: str) -> None:
        self._sha256 = _hash(token)

    def check(self, authorization: bytes | None) -> None:
        """Let the holder of the runner token pass.

        Raises:
            InvalidKey: The runner token is missing or another one.
        """
        if not hmac.compare_digest(_hash(_bearer(authorization)), self._sha256):
            raise InvalidKey(
                "This is not the runner token. Give the runner the gateway's ACE_RUNNER_TOKEN, or its "
                "file `runner.token` by --token-file."
            )


def open_runner_token(configured: str | None, file: Path) -> str:
    """The token that draft runners join with: the operator's choice, or the one in `file`, made if absent.

    Raises:
        SettingsError: The file cannot be read or made, or is empty.
    """
    if configured is not None:
        return configured
    try:
        _make_token_file(file)
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"The runner token file {file} cannot be used: {error}. "
            "Make it readable, or set ACE_RUNNER_TOKEN."
        ) from error
    if not token:
        raise SettingsError(f"The runner token file {file} is empty. Delete it, or set ACE_RUNNER_TOKEN.")
    return token


def _make_token_file(file: Path) -> None:
    """Make the file, whole and for the owner alone, unless it exists. Safe if several processes do it."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if file.exists():
        return
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(f"ace-runner-{secrets.token_urlsafe(32)}\n")
        # A link, unlike a rename, never replaces the token that another process has made meanwhile.
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _bearer(authorization: bytes | None) -> str:
    if authorization is None:
        raise InvalidKey("A key is needed: send it as `Authorization: Bearer KEY`.")
    scheme, _, secret = authorization.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise InvalidKey("The Authorization header is not of the form `Bearer KEY`.")
    return secret.strip()


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
