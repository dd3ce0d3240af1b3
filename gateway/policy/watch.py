"""PolicyHolder: the policy in force, and a newer one as soon as its file has settled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from gateway.errors import Conflict, PolicyError
from gateway.policy.load import LoadedPolicy, PolicySource, default_policy, policy_from
from gateway.settled import SettledFile
from gateway.store.model import PolicyRevision

_log = logging.getLogger(__name__)


class PolicyHolder:
    """Holds the policy in force and keeps it when its file turns bad.

    Args:
        path: The policy file; None holds DEFAULT_POLICY and never changes.
        clock: Unix time.

    Raises:
        PolicyError: From the constructor, when the file is no valid policy: there is no good one to keep.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        self._file: SettledFile[LoadedPolicy] | None = None
        if path is None:
            self._default = default_policy(clock())
        else:
            self._file = SettledFile(
                path,
                what="policy",
                load=lambda content: policy_from(content, str(path), at=clock()),
                error=PolicyError,
                log=_log,
            )

    @property
    def current(self) -> LoadedPolicy:
        """The policy in force; swapped whole."""
        return self._file.current if self._file else self._default

    @property
    def path(self) -> Path | None:
        """The file that is watched."""
        return self._file.path if self._file else None

    @property
    def source(self) -> PolicySource:
        """Where policies come from: `file`, or `default` without one."""
        return "file" if self._file else "default"

    async def put(self, text: str, *, based_on: str, author: str, reason: str) -> PolicyRevision:  # noqa: ARG002
        """Refuse: who writes the file decides.

        Raises:
            Conflict: Always; says where the file is.
        """
        raise Conflict(
            f"The policy comes from the file {self.path}; edit it there, and it is in force within seconds."
            if self._file
            else "The gateway runs without a policy. Start it with --policy FILE, or with "
            "ACE_POLICY_SOURCE=store to keep the policy in the store."
        )

    @property
    def error(self) -> str | None:
        """Why the file as it is now is not in force; None when it is."""
        return self._file.error if self._file else None

    async def run(self, interval: float) -> None:
        """Look at the file every `interval` seconds, for ever."""
        if self._file is not None:
            await self._file.run(interval)

    def check_once(self) -> None:
        """One look at the file. Acts on what it finds only if the look before found the same."""
        if self._file is not None:
            self._file.check_once()
