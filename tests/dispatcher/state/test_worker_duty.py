"""Which workers are in service, and which wait as spares."""

from __future__ import annotations

import random

import pytest
from one_dispatcher import Service

from gt.daemon.host import START_TIMEOUT
from gt.dispatcher.state.events import Lost, Tick
from gt.dispatcher.state.worker_duty import IN_SERVICE, SPARE, WorkerDuty, WorkersBefore, duty_of_new, process_key
from gt.wire import messages as m


@pytest.mark.parametrize(
    ("known", "duty"),
    [
        ({}, IN_SERVICE),
        ({"asks": True}, SPARE),
        ({"short": True}, IN_SERVICE),
        ({"asks": True, "short": True}, SPARE),
        ({"asks": True, "short": True, "complete": True}, IN_SERVICE),
        ({"kept": 1, "complete": True}, SPARE),
        ({"kept": 1, "spares": 1, "complete": True}, IN_SERVICE),
        ({"kept": 1, "short": True, "complete": True}, IN_SERVICE),
    ],
)
def test_duty_of_a_worker_that_joins(known: dict[str, bool | int], duty: WorkerDuty) -> None:
    nothing = {"asks": False, "spares": 0, "kept": 0, "short": False, "complete": False}
    assert duty_of_new(**{**nothing, **known}) is duty  # type: ignore[arg-type]


def duties(each: Service) -> dict[str, str]:
    return {name.decode(): str(worker.duty) for name, worker in each.core.service.workers.items()}


def test_a_spare_that_comes_first_waits() -> None:
    """Those who are to be in service are waited for, whoever comes in which order."""
    each = Service(0, expected=2)
    each.join("s", spare=True)
    each.join("a")
    assert each.core.service.is_short
    each.join("b")
    assert not each.core.service.is_short
    assert duties(each) == {"s": "spare", "a": "in service", "b": "in service"}


def test_spares_take_the_places_of_those_who_do_not_come() -> None:
    each = Service(0, expected=3)
    each.join("s", spare=True)
    each.join("a")
    each.now = START_TIMEOUT + 1.0
    each.say("s", m.Ping())
    each.say("a", m.Ping())
    each.event(Tick())
    assert duties(each) == {"s": "in service", "a": "in service"}
    assert not each.core.service.is_short


def test_the_roles_change_at_each_loss() -> None:
    """The worker that is started again waits in the place of the spare, which is in service now."""
    each = Service(0, expected=2)
    for name, spare in (("a", False), ("b", False), ("s", True)):
        each.join(name, spare=spare, supervised=True)
    each.event(Lost(b"a", "killed", ended=True))
    assert duties(each) == {"b": "in service", "s": "in service"}
    assert not each.core.service.is_short
    each.join("a2", supervised=True)
    assert duties(each) == {"b": "in service", "s": "in service", "a2": "spare"}
    each.event(Lost(b"s", "killed", ended=True))
    each.join("s2", spare=True, supervised=True)
    assert duties(each) == {"b": "in service", "a2": "in service", "s2": "spare"}
    each.event(Lost(b"s2", "killed", ended=True))
    each.join("more", supervised=True)
    assert duties(each)["more"] == "spare", "the service has lost its spare"
    each.join("hand")
    assert duties(each)["hand"] == "in service"


def test_any_sequence_of_losses_ends_as_it_began() -> None:
    """Three workers in service and two spares, killed and started again in any order."""
    for seed in range(200):
        draw = random.Random(seed)
        each = Service(0, expected=3)
        flags = {f"w{n}": n >= 3 for n in range(5)}
        for name in draw.sample(list(flags), 5):
            each.join(name, spare=flags[name], supervised=True)
        gone: list[str] = []
        for _ in range(12):
            there = [name for name in flags if name not in gone]
            if there and (not gone or draw.random() < 0.5):
                gone.append(draw.choice(there))
                each.event(Lost(gone[-1].encode(), "killed", ended=True))
            else:
                back = gone.pop(draw.randrange(len(gone)))
                each.join(back, spare=flags[back], supervised=True)
            assert len(each.core.service.in_service) == min(3, 5 - len(gone))
        for name in gone:
            each.join(name, spare=flags[name], supervised=True)
        assert (len(each.core.service.in_service), each.core.service.spares) == (3, 2)


def test_the_next_dispatcher_keeps_as_many_spares() -> None:
    """Also when the worker that was a spare was none at its start: it was started again in the place of one that asked to be."""
    before = Service(0, expected=2)
    before.join("s", spare=True)
    before.join("w0")
    before.join("w1")
    before.event(Lost(b"w1", "its process ended", ended=True))
    before.join("w2")
    state = before.core.service
    assert [state.workers[name].duty for name in (b"s", b"w0", b"w2")] == [IN_SERVICE, IN_SERVICE, SPARE]
    now = state.workers_now()
    assert now == WorkersBefore(2, 1)
    after = Service(0, expected=now.service)
    after.core.service.goes_on(now)
    for name in ("w2", "w0", "s"):
        after.join(name, spare=name == "s")
    assert [worker.duty for worker in after.core.service.workers.values()] == [IN_SERVICE, IN_SERVICE, SPARE]
    other = Service(0, expected=now.service)
    other.core.service.goes_on(now)
    for name in ("w2", "w0", "w3"):
        other.join(name)
    assert [worker.duty for worker in other.core.service.workers.values()] == [IN_SERVICE, IN_SERVICE, SPARE]


def test_a_process_is_known_by_its_machine_and_number() -> None:
    facts = {"host": "a", "namespace": "n", "boot": "b", "pid": 7}
    key = process_key(facts)
    assert 0 < key < 1 << 63
    assert key == process_key({**facts, "address": "elsewhere"})
    assert key not in {process_key({**facts, "pid": 8}), process_key({**facts, "host": "c"})}
    assert (
        process_key({}) == process_key({"pid": True}) == process_key({"pid": -1}) == process_key({"pid": 1 << 40}) == 0
    )
