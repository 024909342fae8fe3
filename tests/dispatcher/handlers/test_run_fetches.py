"""A run that asks for what it makes: one worker is told with the run, several behind it, and errors are those of a fetch."""

from __future__ import annotations

from one_dispatcher import Service, started

from gt.dispatcher.handlers.fetches import MAX_UNDER_WAY
from gt.wire import messages as m

COPIES = {"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}}


def answered(each: Service, worker: str, request: int) -> None:
    each.say(worker, m.Part(request, [], False, bytes(16)))


def test_one_worker_is_asked_by_the_run_itself() -> None:
    each = started()
    each.run(1, 50, [1], fetch=[7, 0])
    (execute,) = each.hears("w0", m.Execute, m.Collect)
    number, output = execute.fetch
    assert output == 0
    answered(each, "w0", number)
    (value,) = each.hears("c", m.Value)
    assert (value.request, value.parts, value.box, len(value.data)) == (7, 1, [[0, 4]], 16)
    assert each.core.fetches.collections == {}
    assert each.core.service.counters.fetches == 1


def test_several_are_asked_behind_the_run() -> None:
    each = started(2, config=COPIES)
    each.run(1, 50, [1], fetch=[7, 0])
    asked = []
    for worker in ("w0", "w1"):
        execute, collect = each.hears(worker, m.Execute, m.Collect)
        assert execute.fetch == []
        asked.append((worker, collect))
    assert [(collect.tensor, collect.reply, collect.silent) for _, collect in asked] == [(50, 7, False), (50, 7, True)]
    for worker, collect in asked:
        answered(each, worker, collect.request)
    assert len(each.hears("c", m.Value)) == 2


def test_a_run_that_makes_no_such_tensor_is_issued_and_the_request_fails() -> None:
    each = started()
    each.run(1, 50, [1], fetch=[7, 3])
    (execute,) = each.hears("w0", m.Execute)
    assert execute.fetch == []
    assert each.hears("c", m.Failed) == [m.Failed(7, "ProtocolError", "tensor 53 does not exist")]
    assert 50 in each.table()


def test_the_fault_of_an_input_is_the_answer() -> None:
    each = started()
    each.run(9, 40, [1])
    each.say("c", m.Put(2, ["f32", [4]], [], False, b"short"))
    each.hears("c")
    each.run(1, 50, [2], fetch=[7, 0])
    assert each.hears("w0", m.Execute) == []
    (failed,) = each.hears("c", m.Failed)
    assert failed.request == 7
    each.say("c", m.Fetch(8, 50))
    assert each.hears("c", m.Failed) == [failed._replace(request=8)]


def test_a_run_that_is_refused_fails_its_request() -> None:
    each = started()
    each.run(9, 50, [1], fetch=[7, 0])
    assert [failed.request for failed in each.hears("c", m.Failed)] == [0, 7]


def test_it_waits_while_workers_answer_as_many_fetches_as_may_be() -> None:
    each = started()
    for request in range(MAX_UNDER_WAY):
        each.say("c", m.Fetch(1 + request, 1))
    collects = each.hears("w0", m.Collect)
    each.run(1, 50, [1], fetch=[99, 0])
    assert each.hears("w0") == []
    answered(each, "w0", collects[0].request)
    (execute,) = each.hears("w0", m.Execute, m.Collect)
    assert execute.fetch[1] == 0


def test_a_client_that_is_cancelled_hears_of_it_by_the_request() -> None:
    each = started()
    for request in range(MAX_UNDER_WAY):
        each.say("c", m.Fetch(1 + request, 1))
    each.run(1, 50, [1], fetch=[99, 0])
    each.hears("c")
    client = each.core.service.clients[b"c"]
    dropped = each.core.queues.cancel(client)
    each.told_by(each.core._sent())
    assert dropped["fetches"] == MAX_UNDER_WAY + 1
    assert not client.cancelled
    assert 99 in [failed.request for failed in each.hears("c", m.Failed)]
