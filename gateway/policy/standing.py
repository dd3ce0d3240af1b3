"""Standing: what is known beside a backend's findings at the moment of one decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.evidence.loop_costs import Calibration, CostKey, Worth, WorthKey
from gateway.policy.overlays import NO_OVERLAYS, Overlays


class Pairing(Protocol):
    """How the tokenizers of a target and of a draft model compare."""

    @property
    def agrees(self) -> bool | None:
        """Whether they give every id the same meaning; None while nobody has compared them."""

    @property
    def sentence(self) -> str:
        """What was found, with the first id that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A snapshot for one request at one backend, so that `decide` stays a function of its arguments.

    Attributes:
        running: Requests under way at the backend, the one to be decided included.
        load_source: Who says so: `engine` if its running gauge is in it, else `gateway`.
        drafters: What live draft runners have announced.
        costs: Calibrations of steps, expired ones perhaps among them.
        worths: Predicted multipliers, from shadow answers.
        pairing: How the live draft model's tokenizer compares with the target's; None without one, and
            where no rule would use it.
        overlays: What operators have taken away.
    """

    running: int = 1
    load_source: str = "gateway"
    drafters: frozenset[str] = frozenset()
    costs: Mapping[CostKey, Calibration] = field(default_factory=dict)
    worths: Mapping[WorthKey, Worth] = field(default_factory=dict)
    pairing: Pairing | None = None
    overlays: Overlays = NO_OVERLAYS
