"""Sessions whose configs pin signals to devices: which workers they have, and what is where."""

from __future__ import annotations

from typing import Any

from one_dispatcher import Service, started

from gt.dispatcher.limits.limit_table import LimitTable, PrincipalLimits
from gt.dispatcher.state.events import Lost, NewLimits
from gt.sharding.config import Config
from gt.sharding.placement import REPLICATE, At
from gt.wire import messages as m
from gt.wire.principals import OWN_PROCESS


def pins(**devices: str) -> dict[str, Any]:
    return {"sharding_config": {signal: {"device": device} for signal, device in devices.items()}}


def members(each: Service) -> tuple[int, ...]:
    planner = each.core.service.clients[b"c"].planner
    assert planner is not None
    return planner.mesh.members


def layouts(each: Service) -> dict[int, Any]:
    return {tensor: entry.resident.layout for tensor, entry in each.table().items()}


def move_on(each: Service) -> None:
    """Workers finish all that they are sent, until nothing more comes."""
    while each.core.service.issued:
        each.done()


def configured(each: Service, config: dict[str, Any]) -> Any:
    """The answer to a client that asks for a config, once its tensors have moved."""
    each.hears("c")
    each.say("c", m.Configure(7, Config.from_plain(config).to_wire()))
    move_on(each)
    return each.hears("c", m.Answer, m.Failed)[0]


def test_a_session_has_a_worker_for_each_device_and_one_for_the_rest() -> None:
    """What is put is on the worker of its signal; what was there stays where it was."""
    each = started(4)
    each.client("d")
    each.put(1, "d")
    (home,) = members(each)
    others = [number for number in range(4) if number != home]
    configured(each, pins(net=f"gt:{others[2]}", head=f"gt:{others[0]}"))
    assert members(each) == (home, others[0], others[2])
    each.put(2, signal=("net",))
    each.put(3)
    each.put(4, signal=("head", "inner"))
    assert layouts(each) == {1: (At(0),), 2: (At(2),), 3: (At(0),), 4: (At(1),)}
    each.say("c", m.Fetch(9, 2))
    assert each.hears(f"w{others[2]}", m.Collect)


def test_a_kind_is_one_worker_of_it() -> None:
    """The one that the session has, if it is of that kind: then it needs no other."""
    each = Service(0, expected=3)
    for number, kind in enumerate(("cpu", "cuda", "cuda")):
        device = f"{kind}:{number}" if kind == "cuda" else kind
        each.hello(f"w{number}", "worker", address="ipc:///w", bulk=b"b", device=device, kind=kind, host="node7")
    each.client()
    each.put(1)
    (home,) = members(each)
    assert home in (1, 2), "it is faster"
    for device, expected in (
        ("cpu", (home, 0)),
        ("cuda", (home,)),
        (f"cuda:{3 - home}@node7", (home, 3 - home)),
        (f"cuda:{home}", (home,)),
    ):
        configured(each, pins(net=device))
        each.put(len(each.table()) + 1, signal=("net",))
        assert members(each) == expected


def test_a_device_that_nobody_has_or_may_use_is_refused_by_the_line_of_its_rule() -> None:
    each = started(3)
    answer = configured(each, pins(net="gt:7"))
    assert answer.kind == "ConfigError"
    assert (
        "net.device: no worker that the session may use is gt:7; allowed: gt:0 (cpu), gt:1 (cpu), gt:2 (cpu)"
        in answer.text
    )
    (home,) = members(each)
    each.event(NewLimits(LimitTable({OWN_PROCESS.principal.name: PrincipalLimits(workers=1)})))
    answer = configured(each, pins(net=f"gt:{(home + 1) % 3}"))
    assert answer.kind == "ConfigError"
    assert f"may use 1 with all its sessions; allowed: gt:{home} (cpu)" in answer.text
    assert members(each) == (home,), "it goes on as it was"
    answer = configured(each, {"mesh": {"data": 1}, **pins(net=f"gt:{(home + 1) % 3}")})
    assert "no worker of the session's mesh is" in answer.text


def test_a_session_goes_on_without_a_device_that_is_drained() -> None:
    """What was pinned to it moves to the rest, and is computed there."""
    each = started(2)
    each.core.facts["capabilities"] = ["drain"]
    each.hello("t", "watcher")
    (home,) = members(each)
    configured(each, pins(net=f"gt:{1 - home}"))
    each.put(2, signal=("net",))
    each.done()
    assert members(each) == (home, 1 - home)
    each.say("t", m.Drain(5, 1 - home, True))
    move_on(each)
    each.put(3, signal=("net",))
    answer = configured(each, pins(net=f"gt:{1 - home}", head=f"gt:{home}"))
    assert answer.facts["mesh"] == {"workers": 1}, "what is gone is not asked for anew"
    assert members(each) == (home,)
    assert layouts(each) == dict.fromkeys((1, 2, 3), (REPLICATE,))


def test_a_config_that_is_sent_again_may_name_a_worker_that_was_lost() -> None:
    """Its number is not given again. One that no worker has had is refused as ever."""
    each = started(2)
    each.put(1)
    each.event(Lost(b"w0", "its process ended"))
    each.hello("w2", "worker", address="ipc:///w", bulk=b"b")
    config = {"mesh": {"data": 2}, **pins(net="gt:0")}
    assert "no worker of the session's mesh is gt:0" in configured(each, config).text
    assert "is gt:0" in configured(each, pins(net="gt:0")).text
    each.core.service.clients[b"c"].recovery.recoveries = 1
    assert "is gt:9" in configured(each, pins(net="gt:9")).text
    assert configured(each, pins(net="gt:0")).facts["mesh"] == {"workers": 1}
    assert configured(each, config).facts["mesh"] == {"data": 2}
