"""Workers that join: who waits for them and for how long, and what is known of the links between their hosts."""

from __future__ import annotations

from typing import Any

from one_dispatcher import Service, fault_of

from gt.daemon.host import START_TIMEOUT
from gt.dispatcher.cost.cost_model import NETWORK_LINK, LinkProfile, network_of, rounded
from gt.dispatcher.cost.measured_links import MEASURING_SECONDS
from gt.dispatcher.state.events import Lost, Tick
from gt.sharding.config import Config
from gt.wire import messages as m

# waiting for workers


def test_nothing_is_placed_before_the_workers_have_joined() -> None:
    """A client may come first: what it sends waits until the expected workers are there, then is acted on in order."""
    each = Service(0, expected=2)
    each.client()
    each.put(1)
    each.say("c", m.Fetch(1, 1))
    each.join("w0")
    assert not each.hears("w0", m.Store)
    each.join("w1")
    assert [type(told) for told in each.hears("w0") if not isinstance(told, m.Welcome)] == [
        m.DefineMesh,
        m.Store,
        m.Collect,
    ]


def test_a_client_that_comes_first_is_told_how_many_workers_are_expected() -> None:
    """It decides by that what it may do with one worker alone."""
    for there, expected, told in ((0, 1, 1), (0, 2, 2), (1, 1, 1), (1, 2, 2), (3, 2, 3)):
        each = Service(there, expected=expected)
        each.hello("c", "client", bulk=b"bulk-c")
        assert [welcome.facts["workers"] for welcome in each.hears("c", m.Welcome)] == [told]


def test_workers_that_never_come_are_not_waited_for_for_ever() -> None:
    """After a while the service goes on with the workers that there are, and says so in its log."""
    each = Service(1, expected=2)
    each.client()
    each.put(1)
    each.now = START_TIMEOUT + 1
    each.say("w0", m.Ping())
    each.event(Tick())
    assert each.hears("w0", m.Store)
    assert any(line.startswith("error: 1 of 2 workers joined") for line in each.log)


def test_workers_that_need_longer_to_start_get_it() -> None:
    """A dispatcher that was told to be patient waits for as long as it was told, and no longer."""
    each = Service(1, expected=2)
    each.core.patience = START_TIMEOUT + 10
    each.client()
    each.put(1)
    stored = []
    for at in (1.0, START_TIMEOUT + 1, START_TIMEOUT + 11):
        each.now = at
        each.say("w0", m.Ping())
        each.event(Tick())
        stored.append(bool(each.hears("w0", m.Store)))
    assert stored == [False, False, True]
    assert any("1 of 2 workers joined in 40 s; GT_START_TIMEOUT says how long" in line for line in each.log)


def test_without_any_worker_the_client_is_told() -> None:
    """When no worker comes at all, what the client made fails with an error that says how to start one."""
    each = Service(0, expected=1)
    each.client()
    each.put(1)
    each.now = START_TIMEOUT + 1
    each.event(Tick())
    kind, text = fault_of(each, 1)
    assert kind == "WorkerLost"
    assert "gt worker" in text


# links between hosts


def test_workers_of_different_hosts_are_introduced_and_what_they_measure_counts() -> None:
    """One of each other host; meshes that are made later have links as measured, also after nonsense and losses."""
    each = Service(0, expected=3)
    for name, host in [("a1", "a"), ("a2", "a"), ("b1", "b")]:
        each.hello(name, "worker", address=f"tcp://{name}", bulk=b"bulk-" + name.encode(), device="cpu", host=host)
    assert each.hears("a1", m.Meet) == []
    assert each.hears("b1", m.Meet) == [m.Meet([1], ["tcp://a2"])]
    assert each.hears("a2", m.Meet) == [m.Meet([2], ["tcp://b1"])]
    each.say("b1", m.Linked(1, 1_000_000, 5_000_000), m.Linked(77, 1, 1))
    number = each.client()
    each.say("c", m.Configure(1, Config.from_plain({"mesh": {"data": 3}}).to_wire()))
    (record,) = [record for record in each.core.service.meshes.values() if record.client == number]
    (link,) = record.speeds.links
    assert link == (rounded(1e6), rounded(5e-3), 2, 2)
    each.event(Lost(b"b1", "killed"))
    assert all(worker.links == {} for worker in each.core.service.workers.values())


def test_a_mesh_waits_for_the_links_of_its_hosts_to_be_measured() -> None:
    """So that what plans depend on does not depend on when a session came; what is not measured in time is waited for no more."""
    for measured in (True, False):
        each = Service(0, expected=2)
        said: list[str] = []
        each.core.service.log = lambda _, text, *args, said=said, **more: said.append(text)  # type: ignore[method-assign]
        for name in ("a", "b"):
            each.hello(
                name, "worker", address=f"tcp://{name}", bulk=name.encode(), device="cpu", host="web", machine=name
            )
        each.client()
        each.say("c", m.Configure(1, Config.from_plain({"mesh": {"data": 2}}).to_wire()))
        assert not each.core.service.meshes
        if measured:
            each.say("b", m.Linked(0, 1_000_000, 5_000_000))
        else:
            each.now += MEASURING_SECONDS + 1
            each.say("a", m.Ping())
            each.say("b", m.Ping())
            each.event(Tick())
        (record,) = each.core.service.meshes.values()
        assert record.mesh.hosts == (0, 1)
        assert record.mesh.network == network_of(LinkProfile(rounded(1e6), rounded(5e-3)) if measured else NETWORK_LINK)
        assert any("was not measured" in text for text in said) != measured
        assert any("workers [0, 1] on hosts [0, 1]" in text for text in said)


def test_the_busiest_axis_of_a_mesh_stays_within_hosts_however_it_is_named() -> None:
    """The same workers exchange along `model` under either order, unless a rule names workers by number."""
    rules: dict[str, Any] = {"a": {"strategy": "tensor_parallel"}, "b": {"strategy": "data_parallel"}}
    named = {**rules, "c": {"shard": {"axis": 0, "workers": [0, 1]}}}
    found = []
    said: list[str] = []
    for axes, some in ((("data", "model"), rules), (("model", "data"), rules), (("model", "data"), named)):
        each = Service(0, expected=4)
        each.core.service.log = lambda _, text, *args, **more: said.append(text)  # type: ignore[method-assign]
        for name in ("a", "b", "b2", "a2"):
            each.hello(name, "worker", address=f"tcp://{name}", bulk=name.encode(), device="cpu", machine=name[0])
        each.say("b", m.Linked(0, 1_000_000, 5_000_000))
        each.client()
        config = {"mesh": dict.fromkeys(axes, 2), "sharding_config": some}
        each.say("c", m.Configure(1, Config.from_plain(config).to_wire()))
        (record,) = each.core.service.meshes.values()
        assert len(record.mesh.hosts) == 4
        found.append((record.mesh.members, record.mesh.hosts, [link.hosts for link in record.speeds.links]))
    assert any("on hosts [0, 1, 0, 1] (model within one, data over 2)" in text for text in said)
    assert found[0] == ((0, 3, 1, 2), (0, 0, 1, 1), [2, 1])
    assert found[1] == ((0, 1, 3, 2), (0, 1, 0, 1), [1, 2])
    assert found[2] == ((0, 3, 1, 2), (0, 0, 1, 1), [2, 1])


def test_a_worker_that_those_on_other_machines_cannot_reach_is_named_in_the_log() -> None:
    """A program on both would wait without a word."""
    each = Service(0, expected=3)
    said: list[tuple[str, str]] = []
    each.core.service.log = lambda level, text, *_, **__: said.append((level, text))  # type: ignore[method-assign]
    for name, host, address in [("a1", "a", "ipc:///a1"), ("a2", "a", "ipc:///a2"), ("b1", "b", "tcp://b1:1")]:
        assert not [text for level, text in said if level == "warning"], "workers of one machine reach each other"
        each.hello(name, "worker", address=address, bulk=b"bulk-" + name.encode(), device="cpu", host=host)
    (warning,) = [text for level, text in said if level == "warning"]
    assert "on other machines cannot reach worker 1 on a" in warning
    assert "--listen" in warning
