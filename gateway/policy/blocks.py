"""Blocks of time: what control is randomised by, and what a multiplier's interval is resampled by.

Speculated and plain requests that share an engine's batch share every forward, so a plain request beside
speculated ones is slowed by them, and a comparison of the two flatters speculation. In a block every
prod-eligible request of one model on one backend is served the same way (switchback, design.md 9; Bojinov,
Simchi-Levi and Zhao, "Design and Analysis of Switchback Experiments", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.policy.draws import draw
from gateway.policy.model import Control

SWITCHBACK, REPLICA = "switchback", "replica"
"""What speculated answers are compared with: plain blocks of the same backend, or another backend."""

SPANS_A_SWITCH = "spans_a_switch"
"""Why a request is in neither arm: it was under way in both."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of time, of one model on one backend.

    Attributes:
        at: Unix time of its start, a multiple of `seconds`.
        seconds: Its length.
    """

    at: float
    seconds: float


def block_at(at: float, control: Control) -> Block:
    """The block that holds a moment."""
    return Block(at // control.block * control.block, control.block)


def in_control_block(backend_name: str, model: str, at: float, control: Control) -> bool:
    """Whether the randomised block that holds `at` serves this backend and model plainly."""
    return _is_control(backend_name, model, block_at(at, control), control)


def spans_a_switch(backend_name: str, model: str, start: float, end: float, control: Control) -> bool:
    """Whether any block between two moments is of the other arm than the first one."""
    blocks = _blocks(start, end, control)
    return len({_is_control(backend_name, model, block, control) for block in blocks}) > 1


def _blocks(start: float, end: float, control: Control) -> Iterator[Block]:
    first, last = start // control.block, max(start, end) // control.block
    for number in range(int(first), int(last) + 1):
        yield Block(number * control.block, control.block)


def _is_control(backend_name: str, model: str, block: Block, control: Control) -> bool:
    """Whether a block is drawn: one of every 1 / fraction blocks in a row, at random among them.

    Drawn each by itself, blocks of one arm could stay away for a long time.
    """
    if not control.fraction:
        return False
    number, stratum = int(block.at // block.seconds), 1 / control.fraction
    first, last = math.floor(number / stratum), math.floor((number + 1) / stratum)
    return any(
        math.floor((place + draw("control", backend_name, model, str(place))) * stratum) == number
        for place in range(first, last + 1)
    )
