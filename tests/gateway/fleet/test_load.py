from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load import FRESH_S, Load
from tests.fakes.clock import FakeClock

moves = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]), st.integers(1, 9)), max_size=30
)


@given(moves)
def test_every_request_counts_once_where_it_is(some: list[tuple[int, str | None, int]]) -> None:
    load = Load()
    places = [load.place() for _ in range(4)]
    where: dict[int, tuple[str | None, int]] = {}
    for number, backend, sequences in some:
        places[number].move(backend, sequences=sequences)
        where[number] = (backend, sequences)
        for name in ("a", "b"):
            there = [width for at, width in where.values() if at == name]
            assert (load.running(name), load.sequences(name)) == (len(there), sum(there))


def test_a_request_counts_itself_among_those_of_a_backend_once() -> None:
    load = Load()
    other, own = load.place(), load.place()
    other.move("a")
    assert own.among("a") == 2
    own.move("a")
    assert own.among("a") == 2
    assert own.among("b") == 1


def test_what_an_engine_computes_for_others_is_added_to_ours() -> None:
    load = Load(FakeClock())
    load.place().move("a")
    load.hear("a", 3)
    assert (load.running("a"), load.place().among("a"), load.source("a")) == (4, 5, "engine")
    assert (load.running("b"), load.source("b")) == (0, "gateway")


def test_what_was_heard_too_long_ago_counts_no_more() -> None:
    clock = FakeClock()
    load = Load(clock)
    load.hear("a", 3)
    clock.advance(FRESH_S)
    assert (load.running("a"), load.source("a")) == (0, "gateway")


@pytest.mark.parametrize(("heard", "others"), [((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((0, 5, 4), 4)])
def test_a_request_that_an_engine_shows_at_one_look_only_is_none(heard: tuple[int, ...], others: int) -> None:
    """An engine may count one of ours for a moment after its answer has ended here."""
    load = Load(FakeClock())
    for sequences in heard:
        load.hear("a", sequences)
    assert load.running("a") == others


def test_calls_that_are_no_clients_request_are_sequences_of_ours() -> None:
    load = Load()
    with ExitStack() as calls:
        calls.enter_context(load.beside("a", 9))
        assert (load.running("a"), load.sequences("a")) == (0, 9)
    assert load.sequences("a") == 0
