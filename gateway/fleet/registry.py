"""Holds what is known of every backend: registered by operators, probed, looked at again and again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from gateway.errors import Conflict, GatewayError, NotFound, StoreError, TokenizerUnusable
from gateway.fleet.declared import Difference, difference, why_refused_by_hand
from gateway.fleet.discovery import NotDiscovered
from gateway.fleet.examine import PROBE_TIME_LIMIT_S, Examiner
from gateway.fleet.model import (
    Backend,
    BackendState,
    Declaration,
    Discovery,
    FleetSnapshot,
    Registered,
    instances_at,
)
from gateway.fleet.tokenizer import check_tokenizer
from gateway.fleet.watch import Watch
from gateway.store.store import Store
from probes.model import Capability, Support

logger = logging.getLogger(__name__)

_LEASE_S = 15.0
_TRUSTED_S = 60.0


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
        self._registered: Mapping[str, Registered] = {}
        self._snapshot = FleetSnapshot()
        # The snapshot and the store change together, or a slow reader would bring back what has gone.
        self._exchange = asyncio.Lock()
        self._changes: int | None = None
        self._loaded = False
        self._store_error: str | None = None
        self._write_error: str | None = None
        self._declared: _Declared | None = None
        self._watches: dict[str, Watch] = {}
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

    def refused(self) -> tuple[str, ...]:
        """Why the file's word on a backend is not taken, or not all of it."""
        return (*self._declared.refused, *self._declared.unusable) if self._declared else ()

    def snapshot(self) -> FleetSnapshot:
        """The fleet as this process last saw it."""
        return self._snapshot

    def all(self) -> tuple[Registered, ...]:
        """Every backend, by name, with its instances."""
        return tuple(self._registered.values())

    def get(self, name: str) -> Registered:
        """One backend.

        Raises:
            NotFound: None has that name.
        """
        if found := self._registered.get(name):
            return found
        known = ", ".join(list(self._registered)[:20]) or "none yet"
        raise NotFound(f"No backend is named {name[:100]!r}. Registered: {known}.")

    def instance(self, key: str) -> Backend:
        """One instance of a backend, by its key.

        Raises:
            NotFound: There is none.
        """
        for instance in self._instances():
            if instance.key == key:
                return instance
        raise NotFound(f"There is no instance {key[:200]!r} any more.")

    async def add(self, declaration: Declaration) -> Registered:
        """Register a backend and probe it. One that cannot be used is kept too, as down.

        Raises:
            TokenizerUnusable: The tokenizer cannot be loaded here.
            Conflict: The name is taken.
            StoreError: The store cannot be used now.
        """
        # In a thread: a large vocabulary takes seconds that requests would wait for.
        await asyncio.to_thread(check_tokenizer, declaration.tokenizer)
        registered = await self._with_instances(Registered(declaration=declaration))
        with self._busy_with(*registered.instances):
            async with self._exchange:
                await self._store.backends.add(registered)
                self._swap_in(registered)
            return await self._examine_all(registered)

    async def remove(self, name: str) -> None:
        """Forget a backend. Requests under way go on.

        Raises:
            NotFound: None has that name.
            Conflict: The fleet file declares it.
            StoreError: The store cannot be used now.
        """
        async with self._exchange:
            registered = self._registered.get(name)
            if self._declared and registered and registered.declared_by:
                raise Conflict(
                    f"The backend {name!r} is declared by {registered.declared_by}. Take it out of that "
                    "file; the gateway forgets it by itself then."
                )
            if not await self._store.backends.remove(name):
                self.get(name)
            self._swap_out(name)

    async def reprobe(self, name: str) -> Registered:
        """Probe a backend now, at all its instances.

        Raises:
            NotFound: None has that name.
            StoreError: The store cannot be used now.
        """
        await self.sync_once()
        registered = await self._rediscovered(self.get(name))
        with self._busy_with(*registered.instances):
            return await self._examine_all(registered)

    async def declare(self, source: str, declarations: Iterable[Declaration]) -> None:
        """Have exactly these backends be declared by the file `source`, beside those registered by hand.

        While the store is down they are in force in this process alone, and are stored once it is back.
        """
        backends = [Registered(declaration=declaration, declared_by=source) for declaration in declarations]
        resolved = await asyncio.gather(*(self._with_instances(backend) for backend in backends))
        self._declared = _Declared(source, tuple(resolved), await _unusable_tokenizers(source, backends))
        await self.sync_once()

    def would_change(self, declarations: Iterable[Declaration]) -> Difference:
        """What declaring exactly these would change."""
        return difference(declarations, self._registered.values())

    def report_unreachable(self, key: str, why: str) -> None:
        """A request could not connect. The instance is looked at at once; only that look takes it down."""
        if any(b.key == key and b.state is BackendState.UP for b in self._snapshot.backends):
            logger.debug("backend %s was reported: %s", key, why)
            self._look_soon(key)

    async def sync_once(self) -> None:
        """Take over what other processes have changed, and bring what the file declares into force.

        While the store is down the last snapshot stays, but for the file's changes.
        """
        async with self._exchange:
            try:
                await self._sync()
            except StoreError as error:
                self._note_store(str(error))
                self._declare_here()
            else:
                self._loaded = True
                self._note_store(None)

    async def check_health_once(self) -> None:
        """Look at every instance, if it falls to this process to do so."""
        if await self._is_watchman():
            await asyncio.gather(*(self._look_at_all_of(backend) for backend in self.all()))

    async def check_suspects_once(self) -> None:
        """Look at every instance that was reported since the last time."""
        suspects, self._suspects = self._suspects, set()
        await asyncio.gather(*(self._look_at(b) for b in self._instances() if b.key in suspects))

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
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._suspected.wait()
                self._suspected.clear()
                # Not awaited: a backend that has just been declared is probed for seconds.
                tasks.create_task(self.check_suspects_once())

    async def _is_watchman(self) -> bool:
        """Whether this process holds the lease; without a store every process looks for itself."""
        try:
            mine = await self._store.meta.claim("health", self._owner, now=self._clock(), seconds=_LEASE_S)
        except StoreError as error:
            self._note_writing(str(error))
            return True
        self._note_writing(None)
        return mine

    # What the store and the file say

    async def _sync(self) -> None:
        if self._declared and self._declared.pending:
            await self._declare_in_store(self._declared)
        changes = await self._store.meta.changes()
        if changes != self._changes:
            self._show(await self._store.backends.all())
            self._changes = changes
            if self._declared and self._declared.refused:
                self._declared.pending = True  # what stood in the file's way may have gone

    async def _declare_in_store(self, declared: _Declared) -> None:
        """Keep what the file declares. Another process may do the same at the same time."""
        stored = await self._store.backends.all()
        changed, wanted = self._to_declare(declared, stored)
        try:
            await self._store.backends.declare(changed, wanted.removed)
        except Conflict as error:
            logger.debug("another process declares the same: %s", error)
            return
        self._declared_now(declared, changed, wanted, stored=True)

    def _declare_here(self) -> None:
        """Have the file's word be in force in this process, until the store can be used."""
        if self._declared is None or not self._declared.pending:
            return
        changed, wanted = self._to_declare(self._declared, self.all())
        if wanted.added or wanted.changed or wanted.removed:
            kept = {name: b for name, b in self._registered.items() if name not in wanted.removed}
            self._show((kept | {backend.name: backend for backend in changed}).values())
        self._declared_now(self._declared, changed, wanted, stored=False)

    def _to_declare(
        self, declared: _Declared, registered: Iterable[Registered]
    ) -> tuple[list[Registered], Difference]:
        """What has to be kept anew, with what is known of instances that stay; and all that differs."""
        known = {backend.name: backend for backend in registered}
        wanted = difference((backend.declaration for backend in declared.backends), known.values())
        anew = {declaration.name for declaration in wanted.added} | {change.name for change in wanted.changed}
        changed = [
            replace(
                backend,
                instances=instances_at(
                    backend.declaration,
                    _addresses(backend.instances),
                    known[backend.name].instances if backend.name in known else (),
                    self._clock(),
                ),
            )
            for backend in declared.backends
            if backend.name in anew
        ]
        return changed, wanted

    def _declared_now(
        self, declared: _Declared, changed: list[Registered], wanted: Difference, *, stored: bool
    ) -> None:
        refused = tuple(f"{declared.source}: {why_refused_by_hand(name)}" for name in wanted.refused)
        if refused and refused != declared.refused:
            logger.warning("%s", " ".join(refused))
        declared.refused, declared.pending = refused, not stored
        for backend in changed:
            logger.info("backend %s is declared by %s", backend.name, declared.source)
            for instance in backend.instances:
                # A changed credential or kind makes what was found worth little: it is asked for at once.
                self._watches[instance.key] = Watch(instance, trusted=False, probe_again_at=0.0)
                self._look_soon(instance.key)
        for name in wanted.removed:
            logger.info("backend %s is declared no more by %s", name, declared.source)

    # Instances

    async def _with_instances(self, registered: Registered) -> Registered:
        """The backend with its instances of now; with those of before, and why, where they are not known."""
        declaration, error = registered.declaration, ""
        addresses = _addresses(registered.instances)
        if declaration.discovery is Discovery.DNS:
            try:
                addresses = await self._examiner.addresses(declaration.urls[0])
            except NotDiscovered as failed:
                error = str(failed)
        instances = instances_at(declaration, addresses, registered.instances, self._clock())
        return replace(registered, instances=instances, discovery_error=error)

    async def _look_at_all_of(self, registered: Registered) -> None:
        try:
            now = await self._rediscovered(registered)
        except NotFound as error:
            logger.debug("looking for the instances of backend %s: %s", registered.name, error)
        else:
            await asyncio.gather(*(self._look_at(instance) for instance in now.instances))

    async def _rediscovered(self, registered: Registered) -> Registered:
        """The backend with the instances that its name has now, kept where they are others.

        Raises:
            NotFound: It was removed meanwhile.
        """
        if registered.declaration.discovery is not Discovery.DNS:
            return registered
        found = await self._with_instances(registered)
        async with self._exchange:
            current = self.get(registered.name)
            addresses = _addresses(found.instances)
            now = replace(
                current,
                instances=instances_at(current.declaration, addresses, current.instances, self._clock()),
                discovery_error=found.discovery_error,
            )
            if now == current or current.declaration != registered.declaration:
                return current
            self._log_discovery(current, now)
            for instance in now.instances:
                if instance not in current.instances:
                    self._watches[instance.key] = Watch(instance, trusted=False, probe_again_at=0.0)
            self._swap_in(now)
            try:
                await self._store.backends.set_instances(now)
            except StoreError as error:
                self._note_writing(str(error))
            return now

    def _log_discovery(self, before: Registered, now: Registered) -> None:
        if now.discovery_error and now.discovery_error != before.discovery_error:
            logger.warning("backend %s keeps its instances: %s", now.name, now.discovery_error)
        gone = {i.key for i in before.instances} - {i.key for i in now.instances}
        new = {i.key for i in now.instances} - {i.key for i in before.instances}
        if gone or new:
            logger.info("backend %s: new instances %s, gone %s", now.name, sorted(new), sorted(gone))

    def _instances(self) -> tuple[Backend, ...]:
        return tuple(instance for backend in self.all() for instance in backend.instances)

    # Looks and probes

    def _look_soon(self, key: str) -> None:
        self._suspects.add(key)
        self._suspected.set()

    async def _look_at(self, instance: Backend) -> None:
        if self._busy[instance.key]:
            return
        with self._busy_with(instance):
            try:
                health = await self._examiner.look(instance)
                current = self._still_registered(instance)
                concluded = self._watch(current).conclude(current, health, self._clock())
                if concluded.probe:
                    await self._examine(concluded.backend)
                elif concluded.backend != current:
                    await self._keep(concluded.backend)
            except StoreError as error:
                self._note_writing(str(error))
            except GatewayError as error:
                logger.debug("looking at backend %s: %s", instance.key, error)

    async def _examine_all(self, registered: Registered) -> Registered:
        await asyncio.gather(*(self._examine(instance) for instance in registered.instances))
        return self.get(registered.name)

    async def _examine(self, instance: Backend) -> None:
        """Probe an instance and keep what was found."""
        examined = await self._examiner.examine(instance)
        self._watch(instance).probed(examined, self._clock())
        await self._keep(examined)

    async def _keep(self, instance: Backend) -> None:
        """Show what was found, and save it. What cannot be saved now is found again by a later look."""
        before = self._still_registered(instance)
        # Before anything is waited for: requests must not go where nobody is, however slow the store is.
        self._swap_in_instance(instance)
        _log_changes(before, instance)
        async with self._exchange:
            # A reader who had begun earlier may have brought the old state back.
            self._still_registered(instance)
            self._swap_in_instance(instance)
            if not await self._store.backends.save(instance) and not self._is_still_to_be_stored(instance):
                self._swap_out_instance(instance)
                raise NotFound(f"The backend {instance.key!r} was removed while it was probed.")

    def _is_still_to_be_stored(self, instance: Backend) -> bool:
        declared = self._declared
        return bool(declared and declared.pending and self.get(instance.name).declared_by)

    def _still_registered(self, instance: Backend) -> Backend:
        """The newest state of an instance that was asked something."""
        for current in self.get(instance.name).instances:
            if (current.key, current.url) == (instance.key, instance.url):
                return current
        raise NotFound(f"The backend {instance.key!r} was replaced while it was probed.")

    def _watch(self, instance: Backend) -> Watch:
        watch = self._watches.get(instance.key)
        if watch is None or watch.url != instance.url:
            now = self._clock()
            watch = self._watches[instance.key] = Watch(
                instance,
                trusted=now - (instance.probed_at or 0.0) < _TRUSTED_S,
                # One that was never probed is just being probed by the process that registered it.
                probe_again_at=now + PROBE_TIME_LIMIT_S if instance.probed_at is None else 0.0,
            )
        return watch

    @contextmanager
    def _busy_with(self, *instances: Backend) -> Iterator[None]:
        """Keeps looks away from instances that are being asked already."""
        keys = [instance.key for instance in instances]
        self._busy.update(keys)
        try:
            yield
        finally:
            self._busy.subtract(keys)
            self._busy += Counter()  # forgets those that are at zero

    # What is shown

    def _swap_in(self, backend: Registered) -> None:
        self._show((dict(self._registered) | {backend.name: backend}).values())

    def _swap_in_instance(self, instance: Backend) -> None:
        registered = self.get(instance.name)
        instances = tuple(instance if i.key == instance.key else i for i in registered.instances)
        self._swap_in(replace(registered, instances=instances))

    def _swap_out(self, name: str) -> None:
        self._show(backend for backend in self.all() if backend.name != name)

    def _swap_out_instance(self, instance: Backend) -> None:
        registered = self.get(instance.name)
        others = tuple(other for other in registered.instances if other.key != instance.key)
        if others:
            self._swap_in(replace(registered, instances=others))
        else:
            self._swap_out(instance.name)

    def _show(self, backends: Iterable[Registered]) -> None:
        self._registered = {b.name: b for b in sorted(backends, key=lambda b: b.name)}
        # A backend without an instance is shown all the same, as one that is down.
        shown = (b.instances or (b.whole,) for b in self._registered.values())
        self._snapshot = FleetSnapshot(tuple(instance for instances in shown for instance in instances))
        keys = {instance.key for instance in self._snapshot.backends}
        self._watches = {key: watch for key, watch in self._watches.items() if key in keys}

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


class _Declared:
    """What the fleet file declares.

    Attributes:
        backends: As they are to be, with the instances of the moment they were declared.
        unusable: Which of its tokenizers cannot be loaded; their backends serve without.
        pending: Whether the store has still to be told.
        refused: Why some of it is not in force.
    """

    def __init__(self, source: str, backends: tuple[Registered, ...], unusable: tuple[str, ...]) -> None:
        self.source = source
        self.backends = backends
        self.unusable = unusable
        self.pending = True
        self.refused: tuple[str, ...] = ()


async def _unusable_tokenizers(source: str, backends: Iterable[Registered]) -> tuple[str, ...]:
    """What is said of tokenizers that cannot be loaded. A server may be asked all the same."""
    found = []
    for backend in backends:
        try:
            await asyncio.to_thread(check_tokenizer, backend.declaration.tokenizer)
        except TokenizerUnusable as error:
            found.append(f"{source}: backend {backend.name!r}: {error}")
            logger.warning("%s", found[-1])
    return tuple(found)


def _addresses(instances: Iterable[Backend]) -> tuple[str, ...]:
    return tuple(instance.address for instance in instances if instance.address is not None)


def _log_changes(before: Backend, now: Backend) -> None:
    if before.state is not now.state or before.probed_at is None:
        if now.state is BackendState.UP:
            logger.info("backend %s is up", now.key)
        else:
            logger.warning("backend %s is down: %s", now.key, now.state_reason)
    if now.process.differs(before.process):
        logger.info("backend %s is another process: %s, was %s", now.key, now.process, before.process)
    single = now.supports(Capability.SINGLE_PROCESS)
    if single is not before.supports(Capability.SINGLE_PROCESS):
        log = logger.warning if single is Support.NO else logger.info
        log("backend %s: %s", now.key, now.findings[Capability.SINGLE_PROCESS].evidence)
