"""What an engine as a whole makes of each block of time, from its own counter of tokens.

It stands beside a multiplier and never enters one: a counter knows neither requests nor workloads.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from gateway.fleet.model import Backend
from gateway.policy.blocks import Block
from probes.load_gauge import EngineLoad

_LONGEST_GAP_S = 10.0
"""Between two looks that are further apart, anything may have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBlock:
    """An engine during one block, as far as it was busy and seen.

    Attributes:
        tokens: Generated in `busy_seconds`.
        busy_seconds: Time between two looks at each of which it was running something.
        running_seconds: Running sequences, integrated over the busy time.
    """

    backend: str
    block: Block
    tokens: float
    busy_seconds: float
    running_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen of an engine at one moment (Unix time)."""

    at: float
    load: EngineLoad


@dataclass(slots=True)
class _Sums:
    tokens: float = 0.0
    busy_seconds: float = 0.0
    running_seconds: float = 0.0


@dataclass(slots=True)
class _Engine:
    latest: Look | None = None
    open: dict[Block, _Sums] = field(default_factory=dict)


class BlockTally:
    """Adds up, look by look, what each engine makes of each block."""

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}

    def see(self, backend: Backend, look: Look, lengths: AbstractSet[float]) -> list[EngineBlock]:
        """Take a look into account; returns the blocks that have ended since the one before.

        Args:
            backend: Whose engine, at one of its instances.
            look: Later than every one before.
            lengths: Lengths of the blocks that are to be added up, in seconds.
        """
        engine = self._engines.setdefault(backend.key, _Engine())
        before, engine.latest = engine.latest, look
        if before is not None and (grown := _between(before, look)):
            for seconds in lengths:
                _add(engine, Block(before.at // seconds * seconds, seconds), look.at, grown)
        return [_closed(backend.name, engine, block) for block in _ended(engine, look.at)]

    def forget_others(self, instances: AbstractSet[str]) -> None:
        """Forget every engine that is not among these, by its key."""
        for gone in self._engines.keys() - instances:
            del self._engines[gone]


def _between(before: Look, after: Look) -> _Sums | None:
    """What the engine did between two looks; None unless it was busy and is known to have been the same."""
    earlier, later = before.load, after.load
    seconds = after.at - before.at
    if not (earlier.running and later.running and 0 < seconds <= _LONGEST_GAP_S):
        return None
    if earlier.generated is None or later.generated is None or later.generated < earlier.generated:
        # A counter that went back belongs to another process than before.
        return None
    return _Sums(
        tokens=later.generated - earlier.generated,
        busy_seconds=seconds,
        running_seconds=(earlier.running + later.running) / 2 * seconds,
    )


def _ended(engine: _Engine, at: float) -> list[Block]:
    return [block for block in engine.open if block.at + block.seconds <= at]


def _closed(backend: str, engine: _Engine, block: Block) -> EngineBlock:
    sums = engine.open.pop(block)
    return EngineBlock(
        backend=backend,
        block=block,
        tokens=sums.tokens,
        busy_seconds=sums.busy_seconds,
        running_seconds=sums.running_seconds,
    )


def _add(engine: _Engine, block: Block, until: float, grown: _Sums) -> None:
    """Count what lies within one block; what lies in two belongs to neither."""
    if until > block.at + block.seconds:
        return
    sums = engine.open.setdefault(block, _Sums())
    sums.tokens += grown.tokens
    sums.busy_seconds += grown.busy_seconds
    sums.running_seconds += grown.running_seconds
