"""A client's config: the mesh that it asks for, and changing it while tensors live."""

from __future__ import annotations

from typing import Any

import pytest
from one_dispatcher import RULES, Service, configure, fault_of, started

from gt.dispatcher.state.events import JobTurn, Lost, Reload
from gt.dispatcher.state.message_state import MessageState
from gt.ir.instruction_bytes import unpack_plan
from gt.sharding.config import Config
from gt.wire import messages as m


def test_a_live_reload_waits_for_what_is_under_way_and_moves_what_lives() -> None:
    """Plans of one use carry tensors from mesh to mesh; the answer comes when all have arrived, and then the old mesh goes."""
    each = started(2)
    each.run(1, 10, [1])
    each.told.clear()
    each.say("c", m.Configure(7, Config.from_plain(RULES).to_wire()))
    assert not each.told, "the put and the run are under way"
    each.run(1, 20, [10])
    each.done()
    (old,) = {record.mesh.number for record in each.core.service.meshes.values() if len(record.mesh.members) == 1}
    kinds = [type(told) for told in each.hears("w1")]
    assert kinds == [m.DefineMesh, m.DefineMesh, m.DefinePlan, m.Execute, m.DropPlan]
    assert each.hears("c", m.Answer) == []
    each.done()
    assert each.hears("c", m.Answer) == [m.Answer(7, {"mesh": {"data": 2}})]
    told = each.hears("w0")
    assert [type(message) for message in told if isinstance(message, m.DropMesh)] == [m.DropMesh] * 2
    assert old not in each.core.service.meshes
    assert isinstance(told[-1], m.Execute), "and what waited goes on"
    assert each.table()[10].mesh == each.table()[20].mesh != old


@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_a_worker_lost_in_the_middle_of_a_reload(victim: str) -> None:
    """What was moving is gone and says so; the config is tried again on the workers that are left, and is refused or holds."""
    each = started(2)
    each.done()
    each.say("c", m.Configure(7, Config.from_plain({"sharding_config": RULES["sharding_config"]}).to_wire()))
    assert each.core.service.clients[b"c"].moving is not None
    each.event(Lost(victim.encode(), "killed"))
    assert each.hears("c", m.Answer) == [m.Answer(7, {"mesh": {"data": 1}})]
    assert fault_of(each, 1)[0] == "WorkerLost"
    each.put(2)
    each.done()
    assert each.table()[2].fault is None


def test_a_client_lost_in_the_middle_of_a_reload_leaves_nothing() -> None:
    each = started(2)
    each.done()
    each.say("c", m.Configure(7, Config.from_plain(RULES).to_wire()))
    each.event(Lost(b"c", "killed"))
    assert (each.core.service.meshes, each.core.service.issued) == ({}, {})


def test_a_session_brings_its_own_config() -> None:
    """A client's file decides its mesh and rules, and nobody else's."""
    each = Service(2)
    each.client()
    each.client("d")
    assert configure(each, RULES) == m.Answer(7, {"mesh": {"data": 2}})
    each.put(1, signal=("net",))
    each.put(1, "d", signal=("net",))
    assert sorted(told.layout for name in ("w0", "w1") for told in each.hears(name, m.Store)) == ["R", "S0", "S0"]


def test_a_config_overrides_the_services_signal_by_signal() -> None:
    """The service's rules hold where the client's say nothing."""
    each = Service(2, config=RULES)
    each.client()
    configure(each, {"sharding_config": {"rows": {"shard": {"axis": 0, "workers": [0, 1]}}}})
    each.put(1, signal=("net",))
    each.put(2, signal=("rows",))
    assert [told.layout for told in each.hears("w0", m.Store)] == ["S0", "S0"]


def test_a_config_that_does_not_fit_changes_nothing_and_another_may_follow() -> None:
    """A mesh of more workers than there are is refused by its own words; the session goes on as it was."""
    each = Service(2)
    each.client()
    answer = configure(each, {"mesh": {"data": 3}, "sharding_config": RULES["sharding_config"]})
    assert answer.kind == "ConfigError"
    assert "takes 3 workers" in answer.text
    each.put(1)
    each.done()
    assert each.table()[1].fault is None
    each.say("c", m.Free([1]))
    assert configure(each, RULES) == m.Answer(7, {"mesh": {"data": 2}})
    each.put(2)
    each.say("c", m.Fetch(1, 2))
    assert each.hears("w0", m.Collect)


def test_a_config_makes_plans_of_the_old_mesh_impossible() -> None:
    """A session that is configured anew after its tensors are gone plans anew: no plan of the dropped mesh is run."""
    each = started(2)
    each.run(1, 10, [1])
    each.say("c", m.Free([1, 10]))
    each.done()
    configure(each, {"mesh": {"workers": 1}, "sharding_config": {"x": {"shard": {"axis": 0, "workers": [0]}}}})
    each.put(2)
    each.told.clear()
    each.run(1, 20, [2])
    (mesh,) = each.core.service.meshes
    told = each.hears("w0") + each.hears("w1")
    assert [type(message) for message in told] == [m.DefinePlan, m.Execute]
    assert unpack_plan(told[0].body).mesh == mesh


def work(each: Service, turns: int = 1 << 20) -> int:
    """Do so many turns of jobs, or all that there are. Returns how many."""
    done = 0
    while each.core.busy and done < turns:
        each.event(JobTurn())
        done += 1
    return done


def waiting(config: dict[str, Any] = RULES, workers: int = 2) -> Service:
    """A client whose first put waits for the service's config, at a dispatcher that does no job by itself."""
    each = Service(workers, config=config)
    each.client()
    each.idle = False
    each.put(1, signal=("net",))
    assert each.core.service.clients[b"c"].head is MessageState.WAITING_CONFIG
    return each


def test_messages_behind_one_that_waits_for_a_config_follow_in_order() -> None:
    each = Service(2)
    each.client()
    each.idle = False
    each.say("c", m.Configure(7, Config.from_plain(RULES).to_wire()))
    each.put(1, signal=("net",))
    each.say("c", m.Configure(8, Config.from_plain({"mesh": {"model": 2}}).to_wire()))
    each.put(2, signal=("net",))
    assert each.hears("c", m.Answer) == []
    work(each)
    assert each.hears("c", m.Answer) == [m.Answer(7, {"mesh": {"data": 2}})]
    each.done()
    work(each)
    each.done()
    work(each)
    assert each.hears("c", m.Answer) == [m.Answer(8, {"mesh": {"model": 2}})]
    assert [told.layout for told in each.hears("w0", m.Store)] == ["S0", "R"]


def test_a_config_is_read_once_however_often_its_message_is_acted_on() -> None:
    """What holds the message up is looked at again and again: a put and a run in flight, and then tensors that move."""
    each = started(2)
    each.run(1, 10, [1])
    each.put(2, bulk=True)
    each.say("c", m.Configure(7, Config.from_plain(RULES).to_wire()))
    client = each.core.service.clients[b"c"]
    assert client.change is not None
    read = client.change.own
    assert client.head is MessageState.WAITING_IDLE
    each.say("w0", m.Landed(1, 2))
    assert (client.head, client.change.own) == (MessageState.WAITING_IDLE, read)
    each.done("w0")
    assert (client.head, client.change.own) == (MessageState.WAITING_MIGRATION, read)
    each.done("w0")
    assert (client.head, client.change.own) == (MessageState.WAITING_MIGRATION, read)
    each.done()
    assert each.hears("c", m.Answer) == [m.Answer(7, {"mesh": {"data": 2}})]
    assert client.change is None


def test_what_the_services_config_asks_for_is_worked_out_once_for_all_sessions() -> None:
    """Of many sessions that wait at the same time each does some turns of it, and who comes later does none."""
    rules = {f"s{number}": {"strategy": "data_parallel"} for number in range(1000)}
    each = waiting({"mesh": {"data": 2}, "sharding_config": rules})
    alone = work(each)
    assert alone > 40
    again = waiting({"mesh": {"data": 2}, "sharding_config": rules})
    for number in range(10):
        again.client(f"c{number}")
        again.put(1, f"c{number}")
    assert work(again) <= alone + 4 * 10
    again.client("late")
    again.put(1, "late")
    assert again.core.service.clients[b"late"].head is MessageState.DONE
    assert again.hears("late", m.Failed) == []
    policies = [client.planner.policy for client in again.core.service.clients.values() if client.planner]
    assert len({id(policy.table) for policy in policies}) == 12
    assert all(policy.table == policies[0].table for policy in policies)


def test_a_policy_that_one_session_decides_is_no_other_sessions() -> None:
    each = Service(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "auto"}}})
    for name in ("c", "d"):
        each.client(name)
        each.put(1, name, signal=("net",))
    one, other = (client.planner for client in each.core.service.clients.values())
    assert one is not None
    assert other is not None
    one.policy.settle_rest("net")
    assert not one.policy.has_auto
    assert other.policy.has_auto


def test_a_worker_that_joins_meanwhile_counts() -> None:
    """What was worked out for the workers that there were is not taken for those that there are."""
    each = waiting({"sharding_config": {"net": {"strategy": "data_parallel"}}})
    work(each, 2)
    each.join("w2")
    work(each)
    mesh = each.core.service.clients[b"c"].mesh
    assert mesh is not None
    assert mesh.sizes == (3,)
    assert each.table()[1].fault is None


def test_a_worker_lost_meanwhile_is_no_member() -> None:
    each = waiting({"sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.event(Lost(b"w0", "killed"))
    work(each)
    mesh = each.core.service.clients[b"c"].mesh
    assert mesh is not None
    assert mesh.members == (1,)


def test_a_config_of_the_service_that_does_not_fit_fails_each_put() -> None:
    each = waiting({"mesh": {"data": 3}})
    work(each)
    each.put(2)
    work(each)
    for tensor in (1, 2):
        kind, text = each.table()[tensor].fault
        assert kind == "ConfigError"
        assert "takes 3 workers" in text


def test_who_leaves_meanwhile_holds_up_nobody() -> None:
    each = waiting()
    each.client("d")
    each.put(1, "d")
    each.event(JobTurn())
    each.event(Lost(b"c", "killed"))
    work(each)
    assert each.table("d")[1].fault is None


def test_a_cancelled_message_that_waits_for_a_config_holds_up_nothing() -> None:
    each = Service(2, config=RULES, capabilities=("cancel",))
    number = each.client()
    each.hello("t", "watcher")
    each.idle = False
    each.put(1)
    each.say("t", m.Cancel(1, number))
    assert each.table()[1].fault[0] == "Cancelled"
    each.say("c", m.Fetch(1, 1))
    each.put(2)
    work(each)
    assert each.table()[2].fault is None


def reloaded(*plain: dict[str, Any]) -> list[Reload]:
    return [Reload(Config.from_plain(each)) for each in plain]


def test_configs_of_the_service_are_adopted_in_order_and_one_that_does_not_fit_is_left_out() -> None:
    each = started(2)
    each.idle = False
    reloads = reloaded({"mesh": {"data": 2}}, {"mesh": {"model": 2}}, {"mesh": {"data": 3}})
    for event in reloads:
        each.event(event)
    assert each.core.service.config is None
    for _ in range(8):
        work(each)
        each.done()
    assert each.core.service.config is reloads[1].config
    (told,) = [said for said in each.log if said.startswith("error")]
    assert "the config stays as it was: <config>: mesh: {data: 3} takes 3 workers" in told
    mesh = each.core.service.clients[b"c"].mesh
    assert mesh is not None
    assert mesh.axes == ("model",)


def test_a_sessions_config_lies_over_the_services_newest() -> None:
    """Also when that comes while the session's own waits for what is under way."""
    each = started(2)
    each.run(1, 10, [1])
    each.say("c", m.Configure(7, Config.from_plain(RULES | {"mesh": {"data": 1}}).to_wire()))
    each.event(*reloaded({"sharding_config": {"other": {"strategy": "replicate"}}}))
    client = each.core.service.clients[b"c"]
    assert client.head is MessageState.WAITING_IDLE
    for _ in range(4):
        each.done()
    assert client.head is MessageState.DONE
    assert list(client.config.rules) == ["other", "net"]
    assert client.change is None


def test_a_config_whose_merger_is_refused_leaves_the_session_as_it_was() -> None:
    each = started(2, config=RULES)
    before = each.core.service.clients[b"c"].planner
    answer = configure(each, {"sharding_config": {"a": {"strategy": "tensor_parallel"}}})
    assert answer.kind == "ConfigError"
    assert "has no axis 'model'" in answer.text
    assert each.core.service.clients[b"c"].planner is before
