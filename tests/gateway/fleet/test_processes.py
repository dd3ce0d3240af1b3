"""A restart is told from several processes behind one URL."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.model import Process
from gateway.fleet.processes import CONSISTENT_LOOKS, ProcessTrail, Sighting

A, B, C = (Process(started_at=float(1000 + n), version="0.32.0") for n in range(3))
TOKENS = "vllm:generation_tokens_total"


def sighting(process: Process = Process(), **counters: float) -> Sighting:  # noqa: B008 - frozen
    return Sighting(process=process, counters={TOKENS: counters["tokens"]} if counters else {})


def followed(shown: Iterable[Sighting], trail: ProcessTrail | None = None) -> ProcessTrail:
    trail = trail or ProcessTrail(Process())
    for look, seen in enumerate(shown):
        trail.follow(seen, 5.0 * look)
    return trail


def processes(*shown: Process) -> list[Sighting]:
    return [sighting(process) for process in shown]


def test_one_process_is_one() -> None:
    trail = followed(processes(A, A, A))
    assert (trail.several, trail.replaced, trail.process) == ("", False, A)


def test_a_restart_is_a_replacement_and_not_several() -> None:
    trail = ProcessTrail(Process())
    replaced = []
    for shown in processes(A, A, B, B):
        trail.follow(shown, 0.0)
        replaced.append(trail.replaced)
    assert replaced == [False, False, True, False]
    assert (trail.several, trail.process) == ("", B)


def test_a_restart_is_noticed_by_whoever_takes_over_the_looks() -> None:
    assert followed(processes(B), ProcessTrail(A)).replaced


def test_another_version_is_another_process() -> None:
    trail = followed(processes(Process(version="0.31.0"), Process(version="0.32.0")))
    assert trail.replaced


def test_a_process_that_comes_back_is_one_of_several_and_both_are_named() -> None:
    trail = followed(processes(A, B, A))
    assert "started at 1970-01-01T00:16:40.000+00:00" in trail.several
    assert "started at 1970-01-01T00:16:41.000+00:00" in trail.several
    assert not trail.replaced


def test_a_rolling_restart_is_several_only_while_both_answer() -> None:
    trail = followed(processes(A, A, B, A, B))
    assert trail.several
    followed(processes(*[B] * (CONSISTENT_LOOKS - 1)), trail)
    assert trail.several
    followed(processes(B), trail)
    assert (trail.several, trail.process) == ("", B)
    assert trail.replaced, "its findings are of either process, so they are asked for anew"


def test_what_is_not_said_decides_nothing() -> None:
    trail = followed(processes(A, Process(), A, Process(version="0.32.0"), A))
    assert (trail.several, trail.process) == ("", A)


def test_a_counter_that_goes_back_within_one_process_shows_several() -> None:
    trail = followed([sighting(A, tokens=500), sighting(A, tokens=20)])
    assert f"without a restart {TOKENS} went from 500 to 20" in trail.several


def test_a_counter_that_goes_back_once_without_a_start_time_is_a_restart() -> None:
    trail = followed(sighting(tokens=count) for count in (500, 510, 3))
    assert trail.replaced
    followed([sighting(tokens=9), sighting(tokens=30)], trail)
    assert trail.several == ""


def test_a_counter_that_goes_back_again_and_again_shows_several() -> None:
    assert "again and again" in followed(sighting(tokens=n) for n in (500, 3, 510, 4)).several


def test_a_server_that_was_away_may_start_its_counters_anew() -> None:
    trail = ProcessTrail(Process())
    for count in (500, 3, 2):
        trail.follow(sighting(tokens=count), 0.0)
        trail.interrupt()
    assert trail.several == ""


def test_counters_of_a_new_process_are_not_compared_with_the_old_ones() -> None:
    trail = followed([sighting(A, tokens=500), sighting(B, tokens=1), sighting(B, tokens=2)])
    assert trail.several == ""


def test_a_model_that_was_created_at_the_process_start_tells_processes_apart() -> None:
    old, new = Sighting(created=700.0), Sighting(created=900.0)
    trail = followed([old, old, new, new])
    assert (trail.process.started_at, trail.replaced, trail.several) == (900.0, True, "")
    assert followed([old, new] * 3).several


def test_a_model_that_is_created_whenever_one_asks_says_nothing() -> None:
    trail = ProcessTrail(Process())
    for second in (0, 0, 5, 10, 10, 15, 20, 25):
        trail.follow(Sighting(created=1e9 + second), float(second))
        assert not trail.replaced
    assert (trail.process, trail.several) == (Process(), "")


runs = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@given(runs)
def test_restarts_however_many_are_never_several(looks: list[int]) -> None:
    shown = [Process(started_at=float(n)) for n, count in enumerate(looks) for _ in range(count)]
    trail = followed(processes(*shown))
    assert trail.several == ""
    assert trail.process == shown[-1]


@given(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=CONSISTENT_LOOKS))
def test_several_are_found_exactly_where_one_comes_back(shown: list[Process]) -> None:
    changes = [p for place, p in enumerate(shown) if place == 0 or p != shown[place - 1]]
    came_back = len(changes) > len(set(changes))
    assert bool(followed(processes(*shown)).several) is came_back
