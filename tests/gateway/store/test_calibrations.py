from dataclasses import replace

from gateway.evidence.loop_costs import CostKey
from gateway.fleet.model import Backend
from gateway.store.store import Store
from tests.fakes.fleet import registered
from tests.fakes.standings import costs

KEY = CostKey(backend="gpu-1", model="org/m", strategy="fanout", drafter="ngram", band="2-4")
NOON = 1_700_000_000.0


async def test_a_calibration_comes_back_as_it_was(store: Store) -> None:
    kept = [costs(KEY, NOON), costs(replace(KEY, band="1"), NOON)]
    for calibration in kept:
        await store.calibrations.keep(calibration)
    assert sorted(await store.calibrations.all(), key=lambda c: c.key.band) == sorted(
        kept, key=lambda c: c.key.band
    )


async def test_a_newer_one_takes_the_place_of_an_older(store: Store) -> None:
    await store.calibrations.keep(costs(KEY, NOON))
    newer = costs(KEY, NOON + 60, plain=0.1)
    await store.calibrations.keep(newer)
    assert await store.calibrations.all() == (newer,)


async def test_what_was_measured_on_a_backend_goes_with_it(store: Store) -> None:
    """The next server of that name may be another one."""
    await store.backends.add(registered(Backend(name="gpu-1", url="http://gpu-1")))
    other = costs(replace(KEY, backend="gpu-2"), NOON)
    for calibration in (costs(KEY, NOON), other):
        await store.calibrations.keep(calibration)
    await store.backends.remove("gpu-1")
    assert await store.calibrations.all() == (other,)
