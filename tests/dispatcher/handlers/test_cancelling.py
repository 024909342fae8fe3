"""Cancelling a client's work from a monitor: what is dropped, what goes on, who is told, and who may ask."""

from __future__ import annotations

from typing import Any

import pytest
from one_dispatcher import NEG, VECTOR, Service

from gt.dispatcher.state.events import Publish
from gt.dispatcher.state.shared_state import MESH_CREDITS
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import pack_spec
from gt.wire import messages as m
from gt.wire import telemetry as t


@pytest.fixture
def service() -> Service:
    """One worker, one client with a tensor and a segment, one watcher that may cancel."""
    each = Service(1, capabilities=("cancel",))
    each.hello("t", "watcher")
    each.client()
    each.put(1)
    each.define(1)
    each.done()
    each.told.clear()
    return each


def cancel(each: Service, client: int = 1, watcher: str = "t") -> Any:
    """What the watcher is answered."""
    each.say(watcher, m.Cancel(5, client))
    (answer,) = each.hears(watcher, m.Answer, m.Failed)
    assert answer.request == 5
    return answer


def faults(each: Service, client: str = "c") -> dict[int, str]:
    return {number: entry.fault[0] for number, entry in each.table(client).items() if entry.fault is not None}


def fetched(each: Service, request: int, tensor: int, client: str = "c") -> str:
    """The error of a fetch, or ''."""
    each.say(client, m.Fetch(request, tensor))
    failed = [said for said in each.hears(client, m.Failed) if said.request == request]
    return failed[0].kind if failed else ""


def test_queued_work_is_dropped_and_issued_work_is_sound(service: Service) -> None:
    """Beyond the mesh's credits runs wait: they are poisoned, their fetches fail at once, and the rest runs to its end."""
    for number in range(MESH_CREDITS + 8):
        service.run(1, 10 + number, [1])
    service.say("c", m.Fetch(3, 10 + MESH_CREDITS), m.Fetch(4, 10))
    assert len(service.hears("w0", m.Execute)) == MESH_CREDITS
    answer = cancel(service)
    assert answer.facts == {"runs": 8, "puts": 0, "fetches": 2}
    told = service.hears("c", m.Failed)
    assert [(failed.request, failed.kind) for failed in told] == [(3, "Cancelled"), (4, "Cancelled")]
    assert all("cancelled from a monitor" in failed.text for failed in told)
    assert faults(service) == dict.fromkeys(range(10 + MESH_CREDITS, 18 + MESH_CREDITS), "Cancelled")
    service.done()
    assert service.hears("c", m.Credit)[-1].done == 1 + MESH_CREDITS + 8, "the client may go on"
    assert fetched(service, 6, 10) == "", "what was issued has its value"
    assert fetched(service, 7, 10 + MESH_CREDITS) == "Cancelled"
    service.run(1, 500, [10])
    service.run(1, 501, [10 + MESH_CREDITS])
    assert faults(service)[501] == "Cancelled", "what is computed from it inherits it"
    assert 500 not in faults(service)


def test_a_fetch_under_way_fails_at_once_and_its_late_answer_harms_nobody(service: Service) -> None:
    """The client does not wait for a plan that runs long; the tensor is sound, and may be fetched again."""
    service.run(1, 10, [1])
    service.say("c", m.Fetch(3, 10))
    (collect,) = service.hears("w0", m.Collect)
    assert cancel(service).facts == {"runs": 0, "puts": 0, "fetches": 1}
    assert [failed.request for failed in service.hears("c", m.Failed)] == [3]
    service.say("w0", m.Part(collect.request, [], False, bytes(16)))
    assert service.hears("c", m.Value, m.Failed) == []
    assert fetched(service, 4, 10) == ""
    assert cancel(service).facts["fetches"] == 1


def test_who_waits_for_nothing_is_told_by_its_next_fetch(service: Service) -> None:
    """Until the client knows, all that it sends is dropped: runs, puts, and the fetch that tells it; then it goes on."""
    assert cancel(service).facts == {"runs": 0, "puts": 0, "fetches": 0}
    service.run(1, 10, [1])
    service.put(2)
    assert faults(service) == {10: "Cancelled", 2: "Cancelled"}
    assert service.hears("w0", m.Execute, m.Store) == []
    assert fetched(service, 3, 1) == "Cancelled"
    assert fetched(service, 4, 1) == ""
    service.run(1, 11, [1])
    assert len(service.hears("w0", m.Execute)) == 1


def test_a_put_half_landed_lands_and_a_queued_one_is_called_off(service: Service) -> None:
    """A run that waits for its bulk put is dropped, the put is not; a put that waits for its turn is told to go nowhere."""
    service.put(2, bulk=True)
    service.run(1, 10, [2])
    service.say("c", m.Put(3, pack_spec(VECTOR), [], True, b""))
    service.hears("c")
    assert cancel(service).facts == {"runs": 1, "puts": 1, "fetches": 0}
    assert [(cut.tensor, cut.parts) for cut in service.hears("c", m.Cut)] == [(3, [])]
    assert faults(service) == {10: "Cancelled", 3: "Cancelled"}
    service.say("w0", m.Landed(1, 2))
    assert fetched(service, 3, 10) == "Cancelled"
    assert fetched(service, 4, 2) == ""


def test_what_is_no_work_stays(service: Service) -> None:
    """Definitions, frees and questions that waited behind dropped work are acted on."""
    service.put(2, bulk=True)
    service.run(1, 10, [2])
    service.say("c", m.Define(2, pack_segment(NEG)), m.Free([1]), m.Ask(8, "statistics"), m.Drop(1))
    service.hears("c")
    cancel(service)
    client = service.core.service.clients[b"c"]
    assert list(client.segments) == [2]
    assert 1 not in client.table
    assert [answer.request for answer in service.hears("c", m.Answer)] == [8]
    assert not client.queue


def test_others_go_on(service: Service) -> None:
    """Another client's queue, fetches and tensors are as they were."""
    other = service.client("d")
    service.put(1, "d")
    service.define(1, client="d")
    for number in range(MESH_CREDITS + 3):
        service.run(1, 10 + number, [1], "d")
    service.say("d", m.Fetch(9, 10))
    queued = len(service.core.service.clients[b"d"].queue)
    cancel(service, 1)
    assert len(service.core.service.clients[b"d"].queue) == queued > 0
    assert faults(service, "d") == {}
    assert service.hears("d", m.Failed) == []
    assert cancel(service, other).facts["runs"] > 0


def test_who_may_not_cancel() -> None:
    """Not where others than this machine's may ask, not a client, and nobody who is not there; watchers are told of it all."""
    open_to_all = Service(1)
    open_to_all.hello("t", "watcher")
    open_to_all.client()
    refused = cancel(open_to_all)
    assert "only an operator cancels work" in refused.text
    local = Service(1, capabilities=("cancel",))
    local.hello("t", "watcher")
    local.say("t", m.Watch(t.SUMMARY, 0))
    number = local.client()
    assert "client 99 is not there" in cancel(local, 99).text
    local.client("d")
    local.say("d", m.Cancel(1, number))
    assert [said.kind for said in local.hears("d", m.Goodbye)] == ["ProtocolError"]
    assert isinstance(cancel(local, number), m.Answer)
    local.event(Publish(5))
    (events,) = local.hears("t", m.Events)
    decisions = [event for raw in events.events if isinstance(event := t.decode_event(raw), t.Decision)]
    assert [(event.client, event.level) for event in decisions if event.what == "cancelled"] == [(number, "warning")]
    assert any(event.what == "refused" for event in decisions)
