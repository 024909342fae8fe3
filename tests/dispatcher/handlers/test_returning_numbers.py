"""Numbers that no dispatcher of a service gives twice, and rates that do not count sessions that return."""

from __future__ import annotations

from pathlib import Path

from marking_dispatcher import restore
from one_dispatcher import Service
from saved_sessions import ALICE, Saved, comes_back, marked, session

from gt.dispatcher.handlers.handshake import PROGRAM_RATE
from gt.dispatcher.number_file import NumberFile
from gt.dispatcher.state.mark_bytes import SessionCard
from gt.dispatcher.state.numbers import Numbers, first_numbers
from gt.dispatcher.state.worker_duty import WorkersBefore, process_key
from gt.wire import messages as m

OTHER = bytes(16)
SLOW, FAST = ({"host": f"host{speed}", "speed": [speed * 1e9, speed * 1e9]} for speed in (1, 3))


# numbers and rates


def given(each: Service) -> dict[str, set[int]]:
    """All numbers that a service has given."""
    core = each.core.service
    return {
        "sessions": {client.number for client in core.clients.values()},
        "workers": {worker.number for worker in core.workers.values()},
        "meshes": set(core.meshes),
        "marks": {mark.number for client in core.clients.values() for mark in client.recovery.marks},
        "orders": {core.order},
    }


def test_no_number_comes_twice(tmp_path: Path) -> None:
    """Whatever a dispatcher has given, the next one gives others."""
    saved = Saved()
    seen: dict[str, list[int]] = {}
    for turn in range(4):
        saved.numbers = NumberFile(tmp_path / "marks").numbers
        each = saved.dispatcher({}, {}, names=f"w{turn}-")
        session(each, "d", bytes([turn] * 16))
        each.run(1, 10, [1], "d")
        each.done()
        marked(saved, each, "d")
        for what, numbers in given(each).items():
            assert all(number > max(seen.get(what, [-1])) for number in numbers), what
            seen.setdefault(what, []).extend(numbers)
    assert {what: len(set(numbers)) for what, numbers in seen.items()} == {
        "sessions": 4, "workers": 8, "meshes": 4, "marks": 4, "orders": 4,
    }  # fmt: skip


def test_a_service_that_was_not_there_before_counts_from_the_start(tmp_path: Path) -> None:
    one, other = first_numbers(), NumberFile(tmp_path / "marks").numbers
    assert one.order == other.order == 0
    for a, b in zip(one[:4], other[:4], strict=True):
        assert [next(a) for _ in range(5)] == [next(b) for _ in range(5)]
    assert isinstance(other, Numbers)


def keys(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(1, count + 1)]


def test_sessions_that_return_are_not_new_ones() -> None:
    """All of a program's may come at once, in whatever number it had gathered; others are counted as ever, also those that say
    that they return and are not known."""
    burst = PROGRAM_RATE[0]
    cards = [SessionCard(key, ALICE.principal.name, 0, {}, {}) for key in keys(2 * burst)]
    each = Service(0, expected=1, cards=cards)
    for number, key in enumerate(keys(2 * burst)):
        each.origins[f"c{number}"] = ALICE
        each.hello(f"c{number}", "client", resends=True, session_key=key, mark=0)
        assert [type(told) for told in each.hears(f"c{number}")] == [m.Welcome, m.Rewind]
    for number, key in enumerate(keys(3 * burst + 1)[2 * burst :]):
        each.origins[f"d{number}"] = ALICE
        each.hello(f"d{number}", "client", resends=True, session_key=key, mark=0)
        kinds = [type(told) for told in each.hears(f"d{number}")]
        assert kinds == ([m.Welcome, m.Rewind] if number < burst else [m.Goodbye])


def test_a_worker_that_was_being_drained_stays_until_all_sessions_are_back() -> None:
    """They go back on those in service, or on that one, and then it leaves."""
    saved = Saved()
    each = saved.dispatcher({"pid": 7}, {"pid": 8}, {"pid": 9})
    session(each)
    mark = marked(saved, each)
    after = saved.dispatcher(expected=2)
    after.core.service.goes_on(WorkersBefore(2, 0, frozenset({process_key({"pid": 7})})))
    for number in range(3):
        after.join(f"v{number}", marks=True, pid=7 + number)
    assert not after.hears("v0", m.Goodbye)
    rewind = comes_back(saved, after, mark)
    after.say("c", m.Resume(rewind.session, mark))
    ended = after.hears("v0", m.Goodbye)
    restore(after, mark)
    assert after.core.service.clients[b"c"].mesh is not None
    assert set(after.core.service.clients[b"c"].mesh.members) == {4, 5}
    assert [told.kind for told in (*ended, *after.hears("v0", m.Goodbye))] == [m.DRAINED]
