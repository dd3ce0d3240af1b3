"""What shadow answers predict of the loop, at the costs that were calibrated."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random

from gateway.errors import StoreError
from gateway.evidence.loop_costs import MOST_DRAFTS, Calibration, CostKey, Worth, WorthKey
from gateway.evidence.multiplier import MINIMUM_SAMPLE
from gateway.evidence.predict import Replayed, predicted_interval
from gateway.policy.load import PolicyInForce
from gateway.policy.model import Policy
from gateway.policy.overlays import Overlays
from gateway.store.model import ReplayedAnswer
from gateway.store.stages import StageRows

NEWEST_ANSWERS = 100
"""Shadow answers of a workload that a prediction rests on at most; the newest, since traffic changes."""

READ_ANSWERS = 500
"""Newest shadow answers that are read for all workloads of one model."""

REFRESH_S = 10.0
"""Resampling is work, and predictions change slowly."""

logger = logging.getLogger(__name__)


class Worths:
    """Predicted multipliers of the loop, kept fresh.

    Args:
        stages: The stage records.
        policy: Its prod rules say which K are asked about.
        overlays: They may have a rule ask for another.
        costs: The calibrations, expired ones among them.
        clock: Unix time.
    """

    def __init__(
        self,
        *,
        stages: StageRows,
        policy: PolicyInForce,
        overlays: Callable[[], Overlays],
        costs: Callable[[], Mapping[CostKey, Calibration]],
        clock: Callable[[], float],
    ) -> None:
        self._stages = stages
        self._policy = policy
        self._overlays = overlays
        self._costs = costs
        self._clock = clock
        self._known: Mapping[WorthKey, Worth] = {}
        self._made_of: object = None

    def known(self) -> Mapping[WorthKey, Worth]:
        """As last predicted. Replaced whole, never changed."""
        return self._known

    async def refresh_once(self) -> None:
        """Predict again, if anything has changed. While the store is down, the last predictions stay."""
        try:
            await self._refresh()
        except StoreError as error:
            logger.debug("predictions are kept as they are: %s", error)

    async def run(self, interval_s: float = REFRESH_S) -> None:
        """Refresh again and again, until cancelled."""
        while True:
            await self.refresh_once()
            await asyncio.sleep(interval_s)

    async def _refresh(self) -> None:
        now = self._clock()
        costs = [found for found in self._costs().values() if now < found.expires_at]
        ks = asked_ks(self._policy.current.policy, self._overlays())
        made_of = (await self._stages.newest(), ks, {found.key: found.measured_at for found in costs})
        if made_of == self._made_of:
            return
        known: dict[WorthKey, Worth] = {}
        for calibration in costs:
            key = calibration.key
            answers = await self._stages.replayed(
                backend=key.backend, model=key.model, drafter=key.drafter, newest=READ_ANSWERS
            )
            # In a thread, because resampling takes longer than a request may wait.
            known |= await asyncio.to_thread(worths_of, calibration, answers, ks)
        self._known, self._made_of = known, made_of


def asked_ks(policy: Policy, overlays: Overlays) -> tuple[int, ...]:
    """Every K that a prod rule may ask for and that can be predicted for."""
    ks = {k for rule in policy.prod_rules for k in overlays.ks(rule)}
    return tuple(sorted(k for k in ks if k <= MOST_DRAFTS))


def worths_of(
    calibration: Calibration, answers: Sequence[ReplayedAnswer], ks: Sequence[int]
) -> dict[WorthKey, Worth]:
    """What `answers`, newest first, predict at these costs; without workloads that have too few of them."""
    by_workload: defaultdict[str, list[ReplayedAnswer]] = defaultdict(list)
    for answer in answers:
        if len(by_workload[answer.workload]) < NEWEST_ANSWERS:
            by_workload[answer.workload].append(answer)
    worths: dict[WorthKey, Worth] = {}
    for workload, found in by_workload.items():
        for k in ks:
            replayed = [passes for answer in found if (passes := _replayed(answer, k))]
            if len(replayed) >= MINIMUM_SAMPLE:
                key = WorthKey(cost=calibration.key, workload=workload, k=k)
                worths[key] = _worth(calibration, replayed)
    return worths


def _replayed(answer: ReplayedAnswer, k: int) -> Replayed | None:
    point = answer.k_curve.get(str(k))
    if not point or not point["passes"] or not point["tokens_per_pass"]:
        return None
    passes = {int(drafts): count for drafts, count in point["passes_by_drafts"].items() if count}
    return Replayed(point["tokens_per_pass"] * point["passes"], passes) if passes else None


def _worth(calibration: Calibration, replayed: Sequence[Replayed]) -> Worth:
    interval = predicted_interval(
        replayed,
        calibration.pass_seconds,
        calibration.plain_seconds,
        Random(0),  # noqa: S311 - resampling, not a secret
    )
    return Worth(value=interval.value, low=interval.low, answers=len(replayed))
