"""Which speeds may be compared: one answer for the store's sums and for the metrics' arms."""

from __future__ import annotations

from gateway.loop.errors import WhyPlain
from gateway.policy.blocks import SPANS_A_SWITCH
from gateway.policy.model import Action
from gateway.telemetry.record import StageRecord

_OF_SPECULATION = (None, WhyPlain.SLOWER_THAN_PLAIN)
"""Reasons of a speculated answer whose speed is what speculation came to. Giving up because it is slow is a
part of it, or only what went well would count; a lost draft runner or a kill is not."""


def speed_counts(record: StageRecord) -> bool:
    """Whether a record's speed may enter a multiplier.

    It was measured, is of one arm only, of what was asked for, and of an answer that is not known to loop.
    """
    if record.tokens_per_second is None or record.multiplier_reason == SPANS_A_SWITCH or record.looping:
        return False
    return record.action != Action.SPECULATE or record.reason in _OF_SPECULATION
