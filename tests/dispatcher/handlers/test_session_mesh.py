"""A client's config: the mesh that it asks for, and changing it while tensors live."""

from __future__ import annotations

import pytest
from one_dispatcher import RULES, Service, configure, fault_of, started

from gt.dispatcher.state.events import Lost
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
