"""The books of what stays in memory: never over the limit, nothing lost, and what goes out is what is wanted last."""

from __future__ import annotations

import itertools

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from paging import fewest

from gt.worker.spill.eviction import DEVICE_TIER, FILE_TIER, NEVER_READ, OverLimit, Residency


def filled(sizes: list[int], limit: int) -> Residency:
    """One value in each place 0, 1, …, its buffer of that size inside."""
    books = Residency(limit)
    for place, nbytes in enumerate(sizes):
        books.put(place, f"in {place}", nbytes)
    books.check()
    return books


def test_what_is_wanted_last_goes_first() -> None:
    """The order of victims is that of their next uses, the farthest first; what is never read again goes before all."""
    books = filled([10, 10, 10, 10], 40)
    soon = {0: 7.0, 1: 3.0, 2: NEVER_READ, 3: 9.0}
    found = []
    for key in books.victims(35, (), soon.__getitem__):
        found.append(key)
        books.turn(key, f"out {key}", FILE_TIER)
    assert found == ["in 2", "in 3", "in 0", "in 1"]


def test_what_comes_ahead_of_time_takes_the_room_of_what_is_wanted_later() -> None:
    """And of nothing that is wanted sooner or at the same time, nor of what is pinned; where that is not enough, of nothing."""
    books = filled([10, 10, 10, 10], 40)
    soon = {0: 7.0, 1: 3.0, 2: NEVER_READ, 3: 9.0}
    for nbytes, when, pinned, found in (
        (10, 5.0, (), ["in 2"]),
        (25, 5.0, (), ["in 2", "in 3", "in 0"]),
        (25, 7.0, (), []),
        (20, 8.0, (), ["in 2", "in 3"]),
        (20, 5.0, {"in 2"}, ["in 3", "in 0"]),
        (31, 1.0, (), ["in 2", "in 3", "in 0", "in 1"]),
        (41, 1.0, (), []),
    ):
        assert books.give_way(nbytes, when, pinned, soon.__getitem__) == found
    assert books.used == 40, "nothing has gone yet"


def test_a_buffer_is_wanted_when_the_first_of_its_values_is() -> None:
    """Two values that look at one buffer keep it for the sooner of the two."""
    books = Residency(20)
    books.put(0, "shared", 10)
    books.put(1, "shared", 10)
    books.put(2, "alone", 10)
    assert books.used == 20
    assert next(books.victims(10, (), {0: NEVER_READ, 1: 2.0, 2: 5.0}.__getitem__)) == "alone"


def test_what_comes_in_where_it_is_already_counts_once() -> None:
    """Values that went out at one time and others that look at the same memory, taken in before, are of one buffer again."""
    books = Residency(20)
    books.put(0, "in", 10)
    books.put(1, "out", 10, FILE_TIER)
    books.turn("out", "in", DEVICE_TIER)
    books.check()
    assert (books.used, books.keys) == (10, {0: "in", 1: "in"})
    books.clear(0)
    books.clear(1)
    assert books.used == 0


def test_what_is_pinned_stays_and_too_much_is_said_before_anything_goes() -> None:
    """Nothing is named when all that may go is not enough; the error has the sizes."""
    books = filled([10, 20, 30], 60)
    with pytest.raises(OverLimit) as caught:
        next(books.victims(41, {"in 1"}, lambda _: 1.0))
    assert (caught.value.wanted, caught.value.fixed, caught.value.limit) == (41, 20, 60)
    assert list(books.victims(0, (), lambda _: 1.0)) == []


@settings(max_examples=cases(200), deadline=None)
@given(
    data=st.data(),
    limit=st.integers(1, 12),
    actions=st.lists(
        st.tuples(st.sampled_from(("put", "share", "clear", "room", "in")), st.integers(0, 7), st.integers(0, 6)),
        max_size=40,
    ),
)
def test_any_history_keeps_the_books_right(
    data: st.DataObject, limit: int, actions: list[tuple[str, int, int]]
) -> None:
    """Puts, views, ends, evictions and returns in any order: sums agree with a model, and room that is made is there."""
    books, count = Residency(limit), itertools.count()
    model: dict[int, str] = {}
    sizes: dict[str, int] = {}
    inside: dict[str, bool] = {}
    names: dict[str, object] = {}
    for what, place, nbytes in actions:
        if what == "put":
            name = f"buffer {next(count)}"
            model[place], sizes[name], inside[name], names[name] = name, nbytes, True, name
            books.put(place, name, nbytes)
        elif what == "share" and model:
            name = model[data.draw(st.sampled_from(sorted(model)))]
            model[place] = name
            books.put(place, names[name], sizes[name])
        elif what == "clear":
            model.pop(place, None)
            books.clear(place)
        elif what == "in":
            for name in {model[p] for p in model if p == place and not inside[model[p]]}:
                books.turn(names[name], name, DEVICE_TIER)
                inside[name], names[name] = True, name
        else:
            live = set(model.values())
            try:
                for key in books.victims(nbytes, (), lambda place: float(place)):
                    (name,) = (n for n in live if names[n] == key and inside[n])
                    firsts = {n: min(p for p in model if model[p] == n) for n in live if inside[n] and sizes[n]}
                    assert firsts[name] == max(firsts.values()), "the one that is wanted last"
                    inside[name], names[name] = False, ("out", name)
                    books.turn(key, names[name], FILE_TIER)
                assert books.used + nbytes <= limit or not any(inside[n] and sizes[n] for n in live)
            except OverLimit:
                assert nbytes > limit
        books.check()
        assert books.used == sum(sizes[name] for name in set(model.values()) if inside[name])


def loads(uses: list[int], room: int) -> int:
    """How often something is taken in when the books choose: buffers of one size, read in this order."""
    books = Residency(room)
    for place in set(uses):
        books.put(place, ("out", place), 1, FILE_TIER)
    count = 0
    for at, place in enumerate(uses):

        def wanted(other: int | tuple[int, int], at: int = at) -> float:
            return next((later for later in range(at, len(uses)) if uses[later] == other), NEVER_READ)

        key = books.keys[place]
        if not books.buffers[key].inside:
            for victim in books.victims(1, (), wanted):
                books.turn(victim, ("out", *books.buffers[victim].places), FILE_TIER)
            books.turn(key, ("in", place), DEVICE_TIER)
            count += 1
        assert books.used <= room
    return count


@settings(max_examples=cases(200), deadline=None)
@given(uses=st.lists(st.integers(0, 5), max_size=14), room=st.integers(1, 4))
def test_no_order_of_going_out_takes_in_less(uses: list[int], room: int) -> None:
    """Of buffers of one size the books choose so that as little comes back as with any choices."""
    assert loads(uses, room) == fewest(uses, room)
