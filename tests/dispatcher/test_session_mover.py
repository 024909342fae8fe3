"""Running sessions that move to other workers: which, how, and who is told."""

from __future__ import annotations

from typing import Any

import pytest
from one_dispatcher import Service

from gt.dispatcher.operators.decision import explain_session
from gt.dispatcher.pacing.session_moves import SUSTAINED_SECONDS
from gt.dispatcher.state.events import Lost, Tick
from gt.monitor.session_wait import lines
from gt.sharding.config import Config
from gt.wire import messages as m


def crowded(workers: int = 2, *, configs: dict[str, Any] | None = None, devices: tuple[str, ...] = ()) -> Service:
    """Three sessions on two workers, c and e on one and d, who leaves, on the other; c and e always have a plan in flight."""
    each = Service(workers)
    for worker, kind in zip(each.core.service.workers.values(), devices, strict=False):
        worker.facts["kind"] = kind
    for name in "cde":
        each.client(name)
        if configs and name in configs:
            each.say(name, m.Configure(7, Config.from_plain(configs[name]).to_wire()))
        each.put(1, name)
        each.define(1, client=name)
        each.run(1, 2, [1], name)
    assert home(each, "c") == home(each, "e") != home(each, "d")
    each.event(Lost(b"d", "it left"))
    return each


def client_of(each: Service, name: str) -> Any:
    return each.core.service.clients[name.encode()]


def home(each: Service, name: str) -> int:
    (worker,) = client_of(each, name).mesh.members
    return int(worker)


def pass_time(each: Service, seconds: float) -> None:
    """Seconds in which all peers are alive."""
    for _ in range(round(seconds)):
        each.now += 1.0
        for peer in (*each.core.service.clients.values(), *each.core.service.workers.values()):
            peer.heard = each.now
        each.event(Tick())


def settle(each: Service) -> None:
    """What is in flight ends, then what tensors travel by; and a look follows."""
    for _ in range(2):
        each.done()
    pass_time(each, 2)


def moving(each: Service) -> list[str]:
    return [client.identity.decode() for client in each.core.service.clients.values() if client.account.moved]


def test_one_of_two_sessions_that_share_a_worker_moves_to_one_that_is_idle() -> None:
    """Once it pays, and when nothing of it is in flight; its tensors go along, and it computes there from then on."""
    each = crowded()
    source = home(each, "c")
    pass_time(each, SUSTAINED_SECONDS + 3)
    assert home(each, "c") == home(each, "e") == source, "their plans are in flight"
    assert len(each.core.mover.pending) == 1
    settle(each)
    (mover,) = moving(each)
    (stays,) = {"c", "e"} - {mover}
    assert home(each, mover) == 1 - source
    assert home(each, stays) == source
    assert {entry.mesh for entry in client_of(each, mover).table.values()} == {client_of(each, mover).mesh.number}
    each.told.clear()
    each.run(1, 10, [1], mover)
    assert [one.base for one in each.hears(f"w{1 - source}", m.Execute)] == [10]
    each.done()


def test_who_asks_is_told_and_the_audit_trail_says_so() -> None:
    each = crowded()
    source = home(each, "c")
    pass_time(each, SUSTAINED_SECONDS + 3)
    settle(each)
    (mover,) = moving(each)
    said = explain_session(each.core.service, client_of(each, mover))
    text = "\n".join(lines({"sessions": [{**said, "workers": []}], "queued": [], "more": 0}))
    assert (
        f"it has moved from worker {source} to worker {1 - source}, because its work is expected to be 2 times as fast"
        in text
    )
    (record,) = each.core.orders.audit.take()
    assert (record.who, record.action, record.value) == ("the service", "move", f"worker {source} to {1 - source}")
    assert any("it moves from worker" in line for line in each.log)


def test_then_nobody_moves_any_more() -> None:
    each = crowded()
    for _ in range(40):
        pass_time(each, 5)
        each.done()
        for name in "ce":
            each.run(1, 1000 + round(each.now), [1], name)
    assert len(each.core.orders.audit.take()) == 1
    assert home(each, "c") != home(each, "e")
    each.done()


@pytest.mark.parametrize(
    "config",
    [
        {"mesh": {"data": 1}},
        {"mesh": {"data": 1}, "sharding_config": {"net": {"device": "cpu"}}},
        {"sharding_config": {"net": {"shard": {"axis": 0, "workers": [0]}}}, "mesh": {"data": 1}},
    ],
)
def test_whoever_says_where_it_computes_stays(config: dict[str, Any]) -> None:
    each = crowded(configs={"c": config, "e": config})
    pass_time(each, 30)
    assert not each.core.mover.pending
    each.done()


def test_nobody_goes_to_a_worker_of_another_kind_or_beyond_what_it_is_granted() -> None:
    each = crowded()
    for worker in each.core.service.workers.values():
        worker.facts["model"] = f"model {worker.number}"
    pass_time(each, 30)
    assert not each.core.mover.pending
    each.done()


def test_a_session_that_is_told_to_go_where_nobody_is_any_more_stays() -> None:
    """Its worker is lost before it goes, or it leaves itself: nothing is left of the move."""
    each = crowded()
    source = home(each, "c")
    pass_time(each, SUSTAINED_SECONDS + 3)
    (number,) = each.core.mover.pending
    each.event(Lost(f"w{1 - source}".encode(), "it was killed"))
    each.done()
    pass_time(each, 2)
    assert home(each, "c") == home(each, "e") == source
    assert not each.core.mover.pending
    assert each.core.service.by_number[number].stays == ""


def test_what_was_looked_at_for_a_move_that_comes_to_nothing_is_forgotten() -> None:
    """Its target is lost while the session's tensors are looked at: the next change of its mesh looks at them anew."""
    each = crowded()
    each.done()
    client, source = client_of(each, "c"), home(each, "c")
    each.idle = False
    each.core.mover.order(client, 1 - source, "it is told to")
    assert client.survey is not None
    each.event(Lost(f"w{1 - source}".encode(), "it was killed"))
    each.idle = True
    each.event(Tick())
    assert not client.queue
    assert client.survey is None
    each.join("w2")
    each.put(5, "c")
    each.done()
    target = each.core.service.workers[b"w2"].number
    each.core.mover.order(client, target, "it is told to")
    each.event(Tick())
    settle(each)
    assert home(each, "c") == target
    assert {entry.mesh for entry in client.table.values()} == {client.mesh.number}


def slowed_down(times: float, *, same_host: bool = False) -> tuple[Service, int]:
    """Two sessions on two workers; c's plans take 0.2 s there at best, and then so many times as long. Where it was."""
    each = Service(2)
    for worker in each.core.service.workers.values():
        worker.facts["machine"] = "one" if same_host else str(worker.number)
    for name in "cd":
        each.client(name)
        each.put(1, name)
        each.define(1, client=name)
    each.done()
    source, nanoseconds = home(each, "c"), 200_000_000
    for second in range(20):
        for turn in range(3):
            each.run(1, 10 + 3 * second + turn, [1], "c")
            (order,) = each.core.service.issued
            each.say(f"w{source}", m.Done(order, [round(nanoseconds * (times if second > 2 else 1))]))
        pass_time(each, 1)
        if each.core.mover.pending:
            break
    settle(each)
    return each, source


def test_a_session_leaves_a_worker_of_a_cpu_that_something_else_slows_down() -> None:
    """Its plans tell it, and the log says so. What nobody measures any more is forgotten."""
    each, source = slowed_down(2)
    assert moving(each) == ["c"]
    assert home(each, "c") == 1 - source
    assert any(line.startswith(f"warning: worker {source} is slowed down: its plans take ") for line in each.log)
    pass_time(each, 70)
    assert {worker.slowed for worker in each.core.service.workers.values()} == {1.0}
    assert any(f"worker {source} is not slowed down any more" in line for line in each.log)


@pytest.mark.parametrize(("times", "same_host"), [(1.4, False), (2, True)])
def test_it_stays_where_it_would_gain_little_elsewhere(times: float, same_host: bool) -> None:
    """Its plans take a bit longer, or the other worker is on the same host, which slows that down too."""
    each, source = slowed_down(times, same_host=same_host)
    assert home(each, "c") == source
    assert not moving(each)
