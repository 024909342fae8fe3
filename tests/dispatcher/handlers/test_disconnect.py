"""Clients and workers that leave or are lost: what is freed, what fails, and who does not notice."""

from __future__ import annotations

from typing import Any

import pytest
from one_dispatcher import RULES, Service, configure, fault_of, started

from gt.daemon.host import START_TIMEOUT
from gt.dispatcher.membership import WORKER_LEASE_SECONDS
from gt.dispatcher.state.events import Lost, Tick
from gt.dispatcher.state.shared_state import MESH_CREDITS
from gt.wire import messages as m


def test_a_lost_client_is_freed_everywhere() -> None:
    """What a client had goes with it: tensors, plans and mesh on the workers, and all that is known of it here."""
    each = started(1)
    each.run(1, 10, [1])
    each.say("c", m.Fetch(1, 10))
    plan = each.hears("w0", m.DefinePlan)[0].plan
    each.event(Lost(b"c", "killed"))
    assert each.hears("w0") == [m.Forget(1), m.DropPlan(plan), m.DropMesh(1)]
    each.done()
    assert (each.core.service.clients, each.core.service.meshes, each.core.fetches.collections) == ({}, {}, {})
    each.say("w0", m.Part(1, [], False, b""), m.Landed(1, 1))
    each.event(Lost(b"c", "killed again"))


def test_a_goodbye_ends_a_session() -> None:
    """A client that says goodbye is forgotten at once, in its turn."""
    each = started(1)
    each.run(1, 10, [1])
    each.say("c", m.Goodbye("", ""))
    assert [type(told) for told in each.hears("w0")] == [m.DefinePlan, m.Execute, m.Forget, m.DropPlan, m.DropMesh]
    assert each.hears("c") == []


def pair(**config: Any) -> Service:
    """Two workers; client "c" has tensors on both, client "d" on none."""
    each = Service(2)
    each.client()
    each.client("d")
    configure(each, {"mesh": {"data": 2}, **RULES} if config.get("mesh") else RULES)
    each.put(1, signal=("net",))
    each.define(1)
    each.define(1, client="d")
    return each


def test_a_lost_worker_takes_its_tensors_along() -> None:
    """Whoever has data on a lost worker learns it at the next fetch, and from then on its session only errs."""
    each = pair(mesh=True)
    each.say("c", m.Fetch(5, 1))
    each.hears("c")
    each.event(Lost(b"w1", "killed"))
    told = each.hears("c")
    assert [message for message in told if isinstance(message, m.Failed)] == [
        m.Failed(5, "WorkerLost", "worker 1 was lost (killed); what it held is gone")
    ]
    assert m.PeerLost(1, "worker 1 was lost (killed); what it held is gone") in told
    assert fault_of(each, 1)[0] == "WorkerLost"
    each.put(2)
    kind, text = fault_of(each, 2)
    assert kind == "WorkerLost"
    assert "no longer fits" in text


def test_a_lost_worker_leaves_others_alone() -> None:
    """A session that has nothing on the lost worker notices nothing."""
    each = Service(2)
    each.client()
    each.client("d")
    each.put(1)
    each.put(1, "d")
    each.told.clear()
    (record,) = (record for record in each.core.service.meshes.values() if record.mesh.members == (1,))
    lost = next(client for client in each.core.service.clients.values() if client.mesh is record.mesh)
    other = "d" if lost.identity == b"c" else "c"
    each.event(Lost(b"w1", "killed"))
    assert each.hears(other) == []
    each.say(other, m.Fetch(1, 1))
    assert each.hears("w0", m.Collect)


def test_a_session_without_a_mesh_of_its_own_goes_on_with_the_workers_left() -> None:
    """What was on the lost worker is gone; new tensors find their place on the others, with plans of their own."""
    each = Service(2)
    each.client()
    each.put(1)
    each.define(1)
    each.run(1, 10, [1])
    (record,) = each.core.service.meshes.values()
    (member,) = record.mesh.members
    each.event(Lost(b"w%d" % member, "killed"))
    assert fault_of(each, 10)[0] == "WorkerLost"
    each.put(2)
    each.run(1, 20, [2])
    left = f"w{1 - member}"
    assert [type(told) for told in each.hears(left, m.DefinePlan, m.Execute)] == [m.DefinePlan, m.Execute]
    each.say("c", m.Fetch(8, 20))
    assert each.hears(left, m.Collect)


def test_survivors_of_a_broken_mesh_free_what_they_held() -> None:
    """Tensors that are gone because one worker is gone are gone on the others too, and so is the mesh."""
    each = pair(mesh=True)
    each.told.clear()
    each.event(Lost(b"w1", "killed"))
    assert each.hears("w0") == [
        m.PeerLost(1, "worker 1 was lost (killed); what it held is gone"),
        m.Forget(1),
        m.DropMesh(1),
    ]


def test_a_fetch_that_the_lost_worker_had_answered_fails_too() -> None:
    """The other workers forget their parts with the mesh, so a fetch that waits for them fails at once."""
    each = pair(mesh=True)
    each.say("c", m.Fetch(5, 1))
    (collect,) = each.hears("w1", m.Collect)
    each.say("w1", m.Part(collect.request, [], False, b""))
    each.event(Lost(b"w1", "killed"))
    assert [message.request for message in each.hears("c", m.Failed)] == [5]
    each.say("w0", m.Part(collect.request, [], True, b""))
    assert each.hears("c") == []


def test_every_worker_hears_of_a_lost_one() -> None:
    """A worker may still stand in a plan of a session that has ended, waiting for a peer; when that dies, it is told."""
    each = pair(mesh=True)
    each.run(1, 10, [1])
    each.event(Lost(b"c", "killed"))
    each.told.clear()
    each.event(Lost(b"w1", "killed"))
    assert each.hears("w0") == [m.PeerLost(1, "worker 1 was lost (killed); what it held is gone")]


def test_runs_that_waited_for_the_lost_worker_are_not_issued() -> None:
    """A run that waited for a credit of a worker that then dies inherits its loss; its client is credited for it."""
    each = pair(mesh=True)
    for n in range(MESH_CREDITS + 5):
        each.run(1, 10 + n, [1])
    each.say("w0", m.Done(each.core.service.order))
    each.told.clear()
    each.event(Lost(b"w1", "killed"))
    assert not each.hears("w0", m.Execute)
    client = each.core.service.clients[b"c"]
    assert each.core.service.issued == {}
    assert client.credited == client.arrived == MESH_CREDITS + 6
    assert fault_of(each, 10 + MESH_CREDITS + 4)[0] == "WorkerLost"


def test_a_put_on_its_way_to_a_lost_worker_is_waited_for_no_longer() -> None:
    """What waits for a bulk put to land fails at once when a worker that should receive it is gone."""
    each = pair(mesh=True)
    each.put(2, bulk=True)
    each.say("c", m.Fetch(9, 2))
    each.hears("c")
    each.event(Lost(b"w0", "killed"))
    assert each.hears("c", m.Failed)[0].request == 9


def test_the_last_worker_may_be_lost() -> None:
    """Without any worker left, sessions get errors that say so, until another joins."""
    each = started(1)
    each.event(Lost(b"w0", "killed"))
    each.put(2)
    assert fault_of(each, 2)[0] == "WorkerLost"
    each.join("w9")
    each.put(3)
    each.say("c", m.Fetch(1, 3))
    assert each.hears("w9", m.Collect)


def test_a_worker_number_is_never_given_twice() -> None:
    """A worker that joins after another was lost has a number of its own: peers remember the lost one by its number."""
    each = started(2)
    each.event(Lost(b"w0", "killed"))
    each.join("w5")
    assert sorted(worker.number for worker in each.core.service.workers.values()) == [1, 2]


def test_a_silent_worker_is_lost_and_a_pulse_keeps_it() -> None:
    """A worker without a sign of life is lost after a while; its pulse, or any word of it, counts as life."""
    each = Service(2)
    each.hello("p0", "pulse", address="ipc:///w0")
    each.now = WORKER_LEASE_SECONDS
    each.say("p0", m.Ping())
    each.now = WORKER_LEASE_SECONDS + 1
    each.event(Tick())
    assert list(each.core.service.workers) == [b"w0"]
    each.now += WORKER_LEASE_SECONDS - 1
    each.say("w0", m.Ping())
    each.now += 2
    each.event(Tick())
    assert list(each.core.service.workers) == [b"w0"]


def test_a_worker_that_says_goodbye_is_lost() -> None:
    """A worker that is stopped says so, and those who hold data on it get its reason."""
    each = started(1)
    each.say("w0", m.Goodbye("", "it was stopped"))
    assert fault_of(each, 1) == ("WorkerLost", "worker 0 was lost (it was stopped); what it held is gone")


# workers that come back


def supervised(workers: int, **more: Any) -> Service:
    """A service whose workers are started again when they are killed."""
    each = Service(0, expected=workers, **more)
    for number in range(workers):
        each.join(f"w{number}", supervised=True)
    return each


def test_a_session_waits_for_its_killed_worker_to_come_back() -> None:
    """What it held is gone at once; what comes next runs when the worker is there again, on as many as before."""
    config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
    each = supervised(2, config=config)
    each.client()
    each.put(1, signal=("net",))
    each.event(Lost(b"w1", "its process ended", ended=True))
    each.say("c", m.Fetch(1, 1))
    assert each.hears("c", m.Failed)[0].kind == "WorkerLost"
    each.told.clear()
    each.put(2)
    assert not each.hears("w0", m.Store)
    each.join("w2", supervised=True)
    assert each.hears("w0", m.Store)
    assert each.hears("w2", m.Store)


GRID = {"mesh": {"data": 2, "model": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def kept(each: Service, client: str = "c") -> set[int]:
    return {tensor for tensor, entry in each.table(client).items() if entry.fault is None}


def test_what_others_hold_whole_is_not_lost() -> None:
    """Replicas stay where they are, on a mesh of those who hold them; the rest is freed there, and everybody else forgets it."""
    each = Service(4, config=GRID)
    each.client()
    each.put(1)
    each.put(2, signal=("net",))
    each.define(1)
    each.run(1, 10, [1])
    each.done()
    before = each.table()[1].resident.layout
    each.told.clear()
    each.event(Lost(b"w3", "killed"))
    assert kept(each) == {1, 2, 10}
    left = each.core.service.clients[b"c"].planner.mesh
    assert (left.members, left.sizes) == ((0, 2), (2, 1)), "2 is cut along the other axis"
    assert each.table()[1].resident.layout == before
    kinds = [m.PeerLost, m.DropPlan, m.DefineMesh, m.DropMesh]
    assert [type(told) for told in each.hears("w0")] == kinds
    assert [type(told) for told in each.hears("w1")] == [m.PeerLost, m.DropPlan, m.Forget, m.DropMesh]
    each.say("c", m.Fetch(1, 2))
    assert each.hears("w0", m.Collect)
    assert each.hears("w2", m.Collect)
    each.put(3)
    assert "no longer fits" in fault_of(each, 3)[1]
    assert kept(each) == {1, 2, 10}
    each.join("w4")
    each.done()
    each.put(4)
    each.done()
    assert each.core.service.clients[b"c"].planner.mesh.members == (0, 1, 2, 4)
    assert kept(each) == {1, 2, 4, 10}, "there are enough workers for its config again"


def test_what_was_being_made_is_lost() -> None:
    """Until all others have finished that: it may be a fault there."""
    each = supervised(3, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.client()
    each.put(1)
    each.put(2, signal=("net",))
    each.define(1)
    each.run(1, 10, [1])
    each.run(1, 11, [1])
    first = min(order for order in each.core.service.issued if order > 2)
    for worker in ("w0", "w1"):
        each.say(worker, m.Done(first))
    each.event(Lost(b"w2", "killed", ended=True))
    assert kept(each) == {1, 10}
    assert [told.tensors for told in each.hears("w0", m.Release)] == [[2, 11]]
    each.say("c", m.Fetch(1, 10))
    assert each.hears("w0", m.Collect), "nothing has to be waited for"
    each.run(1, 12, [1])
    assert not each.hears("w0", m.Execute)
    each.join("w3", supervised=True)
    each.done()
    each.done()
    assert each.core.service.clients[b"c"].planner.mesh.members == (0, 1, 3)
    assert kept(each) == {1, 10, 12}


def test_another_loss_leaves_less() -> None:
    each = Service(3, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.client()
    each.put(1)
    each.event(Lost(b"w0", "killed"))
    each.event(Lost(b"w1", "killed"))
    assert kept(each) == {1}
    each.say("c", m.Fetch(1, 1))
    assert each.hears("w2", m.Collect)
    each.event(Lost(b"w2", "killed"))
    assert kept(each) == set()


def test_a_fetch_goes_on_without_who_had_nothing_to_send() -> None:
    """Of replicas one is sent; whoever had yet to send a part of it costs the fetch, which can be asked for again."""
    for lost in ("w0", "w1"):
        each = Service(2, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
        each.client()
        each.put(1)
        each.say("c", m.Fetch(5, 1))
        (collect,) = each.hears("w0", m.Collect)
        each.told.clear()
        each.event(Lost(lost.encode(), "killed"))
        if lost == "w0":
            assert [told.request for told in each.hears("c", m.Failed)] == [5]
            each.say("c", m.Fetch(6, 1))
            assert len(each.hears("w1", m.Collect)) == 1
        else:
            each.say("w0", m.Part(collect.request, [], False, bytes(16)))
            assert len(each.hears("c", m.Value)) == 2
            assert not each.hears("c", m.Failed)
            assert not each.core.fetches.collections


def test_what_is_computed_from_lost_tensors_alone_fails_at_once() -> None:
    """No worker is needed for that, so none is waited for."""
    each = supervised(1)
    each.client()
    each.put(1)
    each.define(1)
    each.event(Lost(b"w0", "its process ended", ended=True))
    each.run(1, 10, [1])
    assert fault_of(each, 10)[0] == "WorkerLost"


def test_a_session_on_other_workers_does_not_wait() -> None:
    """Who lost nothing goes on meanwhile."""
    each = supervised(2)
    each.client()
    each.put(1)
    (record,) = each.core.service.meshes.values()
    (member,) = record.mesh.members
    each.event(Lost(b"w%d" % (1 - member), "its process ended", ended=True))
    each.told.clear()
    each.put(2)
    assert each.hears(f"w{member}", m.Store)


def test_a_worker_that_does_not_come_back_is_not_waited_for_for_ever() -> None:
    """After a while the session goes on with the workers that are left, though others use them."""
    each = supervised(2)
    each.now = 100.0
    each.client()
    each.put(1)
    (record,) = each.core.service.meshes.values()
    (member,) = record.mesh.members
    left = f"w{1 - member}"
    each.client("other")
    each.put(1, "other")
    assert each.hears(left, m.Store), "the other program's worker is not idle"
    each.event(Lost(b"w%d" % member, "its process ended", ended=True))
    each.put(2)
    stored = []
    for at in (100.0 + START_TIMEOUT - 1, 100.0 + START_TIMEOUT + 1):
        each.now = at
        each.say(left, m.Ping())
        each.event(Tick())
        stored.append(bool(each.hears(left, m.Store)))
    assert stored == [False, True]


@pytest.mark.parametrize("how", ["it was stopped", "silent"])
def test_a_worker_that_is_not_started_again_is_not_waited_for(how: str) -> None:
    """One that was stopped in order, or that lives and says nothing, does not come back."""
    each = supervised(2)
    each.client()
    each.put(1)
    (record,) = each.core.service.meshes.values()
    (member,) = record.mesh.members
    left = f"w{1 - member}"
    if how == "silent":
        each.now = WORKER_LEASE_SECONDS + 1
        each.say(left, m.Ping())
        each.event(Tick())
    else:
        each.say(f"w{member}", m.Goodbye("", how))
    each.told.clear()
    each.put(2)
    assert each.hears(left, m.Store)


def test_a_worker_whose_device_failed_is_waited_for() -> None:
    """It says so, and starts again by itself, whoever started it."""
    each = Service(1)
    each.client()
    each.put(1)
    each.say("w0", m.Goodbye("WorkerLost", "the device failed"))
    each.put(2)
    each.join("w1")
    assert each.hears("w1", m.Store)
