from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load import Load

moves = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=30)


@given(moves)
def test_every_request_counts_once_where_it_is(some: list[tuple[int, str | None]]) -> None:
    load = Load()
    places = [load.place() for _ in range(4)]
    where: dict[int, str | None] = {}
    for number, backend in some:
        places[number].move(backend)
        where[number] = backend
        for name in ("a", "b"):
            assert load.running(name) == list(where.values()).count(name)


def test_a_request_counts_itself_among_those_of_a_backend_once() -> None:
    load = Load()
    other, own = load.place(), load.place()
    other.move("a")
    assert own.among("a") == 2
    own.move("a")
    assert own.among("a") == 2
    assert own.among("b") == 1
