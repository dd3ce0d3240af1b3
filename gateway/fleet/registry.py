"""Holds what is known of every backend: registered by operators, probed, looked at again and again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gateway.errors import GatewayError, MalformedRequest, NotFound, StoreError
from gateway.fleet.credentials import check_reference
from gateway.fleet.examine import PROBE_TIME_LIMIT_S, PROBED_AS, Examiner
from gateway.fleet.health import Health
from gateway.fleet.model import Backend, BackendState, FleetSnapshot
from gateway.fleet.tokenizer import check_tokenizer
from gateway.fleet.urls import check_url
from gateway.names import check_name
from gateway.store.store import Store

logger = logging.getLogger(__name__)

_LEASE_S = 15.0
_MISSES_BEFORE_DOWN = 3
_TRUSTED_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0


@dataclass(slots=True)
class _Watch:
    """What this process remembers of a backend between two looks.

    Attributes:
        trusted: Its findings are of the server that runs now, as far as is known.
        probe_again_at: A server that answers but cannot be used is not probed before.
        wait_s: How much later it is probed after that.
        listed: The models at the latest look.
        misses: Looks without an answer in a row.
    """

    url: str
    trusted: bool
    probe_again_at: float
    wait_s: float = _FIRST_WAIT_S
    listed: frozenset[str] | None = None
    misses: int = 0


class Registry:
    """The fleet, kept in the store and shared by every process that uses the same store.

    A request takes `snapshot()` and keeps it; a newer one replaces it whole.

    Args:
        store: Where backends are kept.
        examiner: Asks backends.
        clock: Unix time.
        owner: Names this process among those that share the store; one of them looks at backends.
    """

    def __init__(self, *, store: Store, examiner: Examiner, clock: Callable[[], float], owner: str) -> None:
        self._store = store
        self._examiner = examiner
        self._clock = clock
        self._owner = owner
        self._snapshot = FleetSnapshot()
        # The snapshot and the store change together, or a slow reader would bring back what has gone.
        self._exchange = asyncio.Lock()
        self._changes: int | None = None
        self._loaded = False
        self._store_error: str | None = None
        self._write_error: str | None = None
        self._watches: dict[str, _Watch] = {}
        self._busy: Counter[str] = Counter()
        self._suspects: set[str] = set()
        self._suspected = asyncio.Event()

    @property
    def loaded(self) -> bool:
        """Whether the store has been read at least once."""
        return self._loaded

    @property
    def store_error(self) -> str | None:
        """Why the store could not be used when it was last needed; None when it could."""
        return self._store_error or self._write_error

    def snapshot(self) -> FleetSnapshot:
        """The fleet as this process last saw it."""
        return self._snapshot

    def get(self, name: str) -> Backend:
        """One backend.

        Raises:
            NotFound: None has that name.
        """
        for backend in self._snapshot.backends:
            if backend.name == name:
                return backend
        known = ", ".join(b.name for b in self._snapshot.backends[:20]) or "none yet"
        raise NotFound(f"No backend is named {name[:100]!r}. Registered: {known}.")

    async def add(
        self,
        *,
        name: str,
        url: str,
        kind: str = "auto",
        credential: object = None,
        tokenizer: str | None = None,
    ) -> Backend:
        """Register a backend and probe it. One that cannot be used is kept too, as down.

        Raises:
            MalformedRequest: A value is not allowed.
            TokenizerUnusable: The tokenizer cannot be loaded here.
            Conflict: The name is taken.
            StoreError: The store cannot be used now.
        """
        backend = Backend(
            name=check_name("backend name", name),
            url=check_url(url),
            declared_kind=_checked_kind(kind),
            credential=check_reference(credential),
            # In a thread: a large vocabulary takes seconds that requests would wait for.
            tokenizer=await asyncio.to_thread(check_tokenizer, tokenizer),
        )
        with self._busy_with(name):
            async with self._exchange:
                await self._store.backends.add(backend)
                self._swap_in(backend)
            return await self._examine(backend)

    async def remove(self, name: str) -> None:
        """Forget a backend. Requests under way go on.

        Raises:
            NotFound: None has that name.
            StoreError: The store cannot be used now.
        """
        async with self._exchange:
            if not await self._store.backends.remove(name):
                self.get(name)
            self._swap_out(name)

    async def reprobe(self, name: str) -> Backend:
        """Probe a backend now.

        Raises:
            NotFound: None has that name.
            StoreError: The store cannot be used now.
        """
        await self.sync_once()
        with self._busy_with(name):
            return await self._examine(self.get(name))

    def report_unreachable(self, name: str, why: str) -> None:
        """A request could not connect. The backend is looked at at once; only that look takes it down."""
        if any(b.name == name and b.state is BackendState.UP for b in self._snapshot.backends):
            logger.debug("backend %s was reported: %s", name, why)
            self._suspects.add(name)
            self._suspected.set()

    async def sync_once(self) -> None:
        """Take over what other processes have changed. While the store is down the last snapshot stays."""
        try:
            async with self._exchange:
                changes = await self._store.meta.changes()
                if changes != self._changes:
                    self._snapshot = FleetSnapshot(await self._store.backends.all())
                    self._changes = changes
        except StoreError as error:
            self._note_store(str(error))
        else:
            self._loaded = True
            self._note_store(None)

    async def check_health_once(self) -> None:
        """Look at every backend, if it falls to this process to do so."""
        if await self._is_watchman():
            await asyncio.gather(*(self._look_at(backend) for backend in self._snapshot.backends))

    async def check_suspects_once(self) -> None:
        """Look at every backend that was reported since the last time."""
        self._suspected.clear()
        suspects, self._suspects = self._suspects, set()
        await asyncio.gather(*(self._look_at(b) for b in self._snapshot.backends if b.name in suspects))

    async def run(self, *, sync_interval_s: float = 0.5, health_interval_s: float = 5.0) -> None:
        """Keep the snapshot fresh until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sync_for_ever(sync_interval_s))
            tasks.create_task(self._suspect_for_ever())
            while True:
                # Not awaited: one slow backend holds up neither the others nor the next round.
                tasks.create_task(self.check_health_once())
                await asyncio.sleep(health_interval_s)

    async def _sync_for_ever(self, interval_s: float) -> None:
        while True:
            await self.sync_once()
            await asyncio.sleep(interval_s)

    async def _suspect_for_ever(self) -> None:
        while True:
            await self._suspected.wait()
            await self.check_suspects_once()

    async def _is_watchman(self) -> bool:
        """Whether this process holds the lease; without a store every process looks for itself."""
        try:
            mine = await self._store.meta.claim("health", self._owner, now=self._clock(), seconds=_LEASE_S)
        except StoreError as error:
            self._note_writing(str(error))
            return True
        self._note_writing(None)
        return mine

    async def _look_at(self, backend: Backend) -> None:
        if self._busy[backend.name]:
            return
        with self._busy_with(backend.name):
            try:
                health = await self._examiner.look(backend)
                await self._judge(self._still_registered(backend), health)
            except StoreError as error:
                self._note_writing(str(error))
            except GatewayError as error:
                logger.debug("looking at backend %s: %s", backend.name, error)

    async def _judge(self, backend: Backend, health: Health) -> None:
        watch = self._watch(backend)
        if not health.alive:
            await self._count_miss(backend, watch, health)
            return
        watch.misses = 0
        changed = None not in (watch.listed, health.models) and watch.listed != health.models
        if backend.state is BackendState.DOWN:
            due = self._clock() >= watch.probe_again_at
        else:
            due = changed or not watch.trusted
        watch.listed = health.models or watch.listed
        if due:
            await self._examine(backend)

    async def _count_miss(self, backend: Backend, watch: _Watch, health: Health) -> None:
        watch.misses += 1
        if not health.certain and watch.misses < _MISSES_BEFORE_DOWN:
            return
        # Whatever answers next may be another server: it is probed at once.
        watch.probe_again_at, watch.wait_s = 0.0, _FIRST_WAIT_S
        if backend.state is BackendState.UP or backend.state_reason != health.reason:
            await self._keep(replace(backend, state=BackendState.DOWN, state_reason=health.reason))

    async def _examine(self, backend: Backend) -> Backend:
        """Probe a backend and keep what was found."""
        examined = await self._examiner.examine(backend)
        watch = self._watch(backend)
        watch.trusted = True
        if examined.state is BackendState.UP:
            watch.wait_s = _FIRST_WAIT_S
        watch.probe_again_at = self._clock() + watch.wait_s
        watch.wait_s = min(2 * watch.wait_s, _LONGEST_WAIT_S)
        await self._keep(examined)
        return examined

    async def _keep(self, backend: Backend) -> None:
        """Show what was found, and save it. What cannot be saved now is found again by a later look."""
        before = self._still_registered(backend)
        # Before anything is waited for: requests must not go where nobody is, however slow the store is.
        self._swap_in(backend)
        if before.state is not backend.state or before.probed_at is None:
            _log_state(backend)
        async with self._exchange:
            # A reader who had begun earlier may have brought the old state back.
            self._still_registered(backend)
            self._swap_in(backend)
            if not await self._store.backends.save(backend):
                self._swap_out(backend.name)
                raise NotFound(f"The backend {backend.name!r} was removed while it was probed.")

    def _still_registered(self, backend: Backend) -> Backend:
        """The newest state of a backend that was asked something."""
        current = self.get(backend.name)
        if current.url != backend.url:
            raise NotFound(f"The backend {backend.name!r} was replaced while it was probed.")
        return current

    def _watch(self, backend: Backend) -> _Watch:
        watch = self._watches.get(backend.name)
        if watch is None or watch.url != backend.url:
            now = self._clock()
            trusted = now - (backend.probed_at or 0.0) < _TRUSTED_S
            # One that was never probed is just being probed by the process that registered it.
            probe_again_at = now + PROBE_TIME_LIMIT_S if backend.probed_at is None else 0.0
            watch = self._watches[backend.name] = _Watch(backend.url, trusted, probe_again_at)
        return watch

    @contextmanager
    def _busy_with(self, name: str) -> Iterator[None]:
        """Keeps looks away from a backend that is being asked already."""
        self._busy[name] += 1
        try:
            yield
        finally:
            self._busy[name] -= 1

    def _swap_in(self, backend: Backend) -> None:
        others = [b for b in self._snapshot.backends if b.name != backend.name]
        self._snapshot = FleetSnapshot(tuple(sorted([*others, backend], key=lambda b: b.name)))

    def _swap_out(self, name: str) -> None:
        self._snapshot = FleetSnapshot(tuple(b for b in self._snapshot.backends if b.name != name))
        self._watches.pop(name, None)

    def _note_store(self, error: str | None) -> None:
        if error and not self._store_error:
            logger.warning("backends are kept as they are: %s", error)
        if self._store_error and not error:
            logger.warning("the store can be used again")
        self._store_error = error
        if error:
            self._changes = None

    def _note_writing(self, error: str | None) -> None:
        """A full disk may be read from: what is found meanwhile counts here, and is saved afterwards."""
        if error and not self.store_error:
            logger.warning("what is found of backends is not saved for now: %s", error)
        if self._write_error and not error:
            self._changes = None
        self._write_error = error


def _checked_kind(kind: str) -> str:
    if kind not in PROBED_AS:
        raise MalformedRequest(f"The kind {kind[:100]!r} is not known. Allowed: {', '.join(PROBED_AS)}.")
    return kind


def _log_state(backend: Backend) -> None:
    if backend.state is BackendState.UP:
        logger.info("backend %s is up", backend.name)
    else:
        logger.warning("backend %s is down: %s", backend.name, backend.state_reason)
