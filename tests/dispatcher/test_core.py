"""Peers that say what they may not: only they are affected, and no stream of messages does more than be refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Lines, one
from one_dispatcher import NEG, RULES, VECTOR, Service, fault_of, started

from gt.bounds import MAX_DEFINITION_BYTES
from gt.dispatcher.handlers import message_queues
from gt.dispatcher.handlers.disconnect import MAX_ENDED
from gt.dispatcher.state.events import Lost, Malformed
from gt.ir.dtypes import float32
from gt.ir.instruction_bytes import pack_segment
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.principals import USER, Origin, Principal


def nonsense() -> dict[str, list[Any]]:
    """Ways for a client to go wrong that cost it at most its own tensors: each a list of messages."""
    big = (1 << 63) - 1
    return {
        "an unknown segment": [m.Run(9, 50, [1], [], [], [])],
        "an unknown tensor": [m.Run(1, 50, [44], [], [], [])],
        "too few inputs": [m.Run(1, 50, [], [], [], [])],
        "too many scalars": [m.Run(1, 50, [1], [1], [], [])],
        "dying out of range": [m.Run(1, 50, [1], [], [1, 70], [])],
        "an output that exists": [m.Run(1, 1, [1], [], [], [])],
        "an output below all ids": [m.Run(1, -5, [1], [], [], [])],
        "an output beyond all ids": [m.Run(1, big, [1], [], [], []), m.Run(1, 2 * big, [1], [], [], [])],
        "a tensor below all ids": [m.Put(-1, ["f32", [4]], [], False, bytes(16)), m.Free([1])],
        "a tensor beyond all ids": [m.Put(2 * big, ["f32", [4]], [], True, b"")],
        "a put of nothing known": [m.Put(60, [], [], False, b"")],
        "a put that exists": [m.Put(1, ["f32", [4]], [], False, bytes(16))],
        "an endless put": [m.Put(60, ["f64", [1 << 47]], [], True, b""), m.Free([60])],
        "a fetch of nothing": [m.Fetch(1, 60), m.Fetch(0, 60), m.Fetch(-1, 1)],
        "frees of nothing": [m.Free([60, 61, 60])],
        "a double definition": [m.Define(1, pack_segment(NEG))],
        "a definition of nothing": [m.Define(2, b""), m.Run(2, 50, [1], [], [], [])],
        "a drop of nothing": [m.Drop(7)],
        "a question about nothing": [m.Ask(1, "weather")],
        "a config of nothing": [
            m.Configure(1, {}),
            m.Configure(2, {"config": {"mesh": []}, "mesh_where": "", "where": []}),
        ],
    }


@pytest.mark.parametrize("messages", nonsense().values(), ids=nonsense())
@pytest.mark.parametrize("before", [True, False], ids=["with tensors", "from the start"])
def test_wrong_messages_affect_their_sender_alone(messages: list[Any], before: bool) -> None:
    """Whatever a client asks for that cannot be, the service answers or ignores it, and other clients go on."""
    each = Service(2)
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    each.client()
    if before:
        each.put(1)
        each.define(1)
    each.say("c", *messages)
    each.done()
    each.told.clear()
    each.run(1, 10, [1], "d")
    executed = [told.client for name in ("w0", "w1") for told in each.hears(name, m.Execute)]
    assert executed == [1]
    each.say("d", m.Fetch(1, 10))
    assert b"d" in each.core.service.clients
    assert not each.hears("d", m.Failed, m.Goodbye)


def test_a_wrong_kind_of_scalar_is_refused() -> None:
    """A scalar has the kind that its definition says; only an integer may stand for a float."""
    each = started(1)
    each.define(2, one("mul", VECTOR, "f"))
    each.define(3, one("full", "i", shape=(2,), dtype=float32))
    each.run(2, 10, [1], scalars=[2])
    each.run(2, 20, [1], scalars=[True])
    each.run(3, 30, [], scalars=[1.5])
    assert len(each.hears("w0", m.Execute)) == 1
    assert fault_of(each, 20)[1] == "a scalar of kind 'f' is not True"
    assert fault_of(each, 30)[1] == "a scalar of kind 'i' is not 1.5"


def test_another_specs_input_is_refused() -> None:
    """A segment says what its inputs are; a tensor of another shape in their place is an error, not an accident."""
    each = started(1)
    each.say("c", m.Put(2, ["f32", [2, 2]], [], False, bytes(16)))
    each.run(1, 10, [2])
    assert fault_of(each, 10)[1] == "an input is f32[2,2], the segment says f32[4]"


def test_a_bulk_put_without_a_bulk_identity_is_refused() -> None:
    """A client that never said which bulk socket is its own cannot make workers wait for what nobody sends."""
    each = Service(1)
    each.client(bulk=b"")
    each.put(1, bulk=True)
    assert not each.hears("w0", m.Store)
    assert fault_of(each, 1)[0] == "ProtocolError"


def test_definitions_of_a_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never drops a definition is refused more of them."""
    monkeypatch.setattr(message_queues, "MAX_SEGMENTS", 3)
    each = started(1)
    for number in range(2, 6):
        each.define(number)
    assert len(each.hears("c", m.Failed)) == 2
    assert len(each.core.service.clients[b"c"].segments) == 3


def test_the_bytes_of_all_definitions_of_a_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a session that goes back again and again; what is dropped makes room."""
    each = started(1)
    body = pack_segment(NEG)
    monkeypatch.setattr(message_queues, "MAX_ALL_DEFINITIONS_BYTES", 3 * len(body))
    for number in range(2, 6):
        each.define(number)
    assert len(each.hears("c", m.Failed)) == 2
    each.say("c", m.Drop(2))
    each.define(7)
    assert not each.hears("c", m.Failed)
    recovery = each.core.service.clients[b"c"].recovery
    assert recovery.definition_bytes == 3 * len(body)
    recovery.keep_definitions({1, 3})
    assert recovery.definition_bytes == 2 * len(body)


def three_sessions() -> Service:
    """Two of one principal, "a" and "b", and one of another, "o"."""
    each = Service(1)
    for peer, name in (("a", "many"), ("b", "many"), ("o", "one")):
        each.origins[peer] = Origin(Principal(name, frozenset({USER})))
        each.client(peer)
        each.say(peer, m.Define(1, pack_segment(NEG)))
        each.hears(peer)
    return each


def test_the_bytes_of_all_definitions_of_a_principal_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its sessions have too many together, those are refused more that have more than an equal part; nobody else is."""
    each = three_sessions()
    body = pack_segment(NEG)
    monkeypatch.setattr(message_queues, "LEAST_HELD_BYTES", len(body))
    monkeypatch.setattr(message_queues, "MAX_PRINCIPAL_DEFINITIONS_BYTES", 4 * len(body))

    def failed(peer: str, number: int) -> int:
        each.say(peer, m.Define(number, body))
        return len(each.hears(peer, m.Failed))

    assert [failed("a", number) for number in range(2, 6)] == [0, 0, 1, 1]
    assert [failed("b", number) for number in range(2, 4)] == [0, 1], "an equal part is two, whatever others have"
    assert [failed("o", number) for number in range(2, 6)] == [0, 0, 0, 1]


def test_what_all_sessions_of_a_principal_have_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that has more than its part when it is too much ends; the others of that principal go on."""
    each = three_sessions()
    each.hears("w0")
    for peer in ("a", "b", "o"):
        each.put(1, peer, bulk=True)  # it does not land, so all else waits behind a first message
        each.say(peer, m.Fetch(20, 1))
        each.say(peer, m.Fetch(1, 1))
    per_message = each.core.service.clients[b"a"].waiting_bytes
    monkeypatch.setattr(message_queues, "LEAST_HELD_BYTES", per_message)
    monkeypatch.setattr(message_queues, "MAX_PRINCIPAL_WAITING_BYTES", 8 * per_message)
    for request in range(2, 8):
        each.say("a", m.Fetch(request, 1))
    assert b"a" in each.core.service.clients, "seven of its own, and one of b"
    each.say("b", m.Fetch(2, 1))
    assert b"b" in each.core.service.clients, "the ninth of the two is not beyond the part of b"
    for request in range(2, 9):
        each.say("o", m.Fetch(request, 1))
    each.say("a", m.Fetch(8, 1))
    assert b"a" not in each.core.service.clients
    (goodbye,) = each.hears("a", m.Goodbye)
    assert "in all sessions of many" in goodbye.text
    assert {b"b", b"o"} <= each.core.service.clients.keys()


def test_roles_may_say_what_is_theirs() -> None:
    """A client that speaks as a worker, or a worker as a client, is confused and ended; the other role goes on."""
    each = started(2)
    each.client("d")
    for message in (m.Done(1), m.Part(1, [], False, b""), m.Execute(1, 1, 1, 1, [], [], [], []), m.Welcome(1, {})):
        each.client("bad")
        each.say("bad", message)
        if not isinstance(message, m.Welcome):
            assert each.hears("bad", m.Goodbye)
    each.say("w1", m.Run(1, 10, [1], [], [], []))
    assert list(each.core.service.workers) == [b"w0"]
    assert {b"c", b"d"} <= set(each.core.service.clients)


def test_strangers_are_told_to_say_hello() -> None:
    """A peer that is not known is told how to begin, counted, and logged once however often it comes back."""
    each = Service(1)
    for _ in range(3):
        each.say("x", m.Free([1]))
    each.event(Malformed(b"x", "not msgpack"))
    each.say("y", m.Goodbye("", ""))
    goodbyes = each.hears("x")
    assert [each.kind for each in goodbyes] == ["ProtocolError"] * 4
    assert "start afresh with Hello" in goodbyes[0].text
    assert each.core.service.counters.refused == 4
    assert len([line for line in each.log if line.startswith("warning")]) == 1
    assert each.hears("y") == []


def test_garbage_ends_the_session_that_it_came_from() -> None:
    """What is no message at all, from a client's own connection, ends that client and nobody else."""
    each = started(1)
    each.client("d")
    each.event(Malformed(b"c", "not msgpack"))
    assert list(each.core.service.clients) == [b"d"]


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (m.Hello(m.VERSION + 1, "client", {}), "speaks protocol"),
        (m.Hello(m.VERSION, "king", {}), "no role"),
        (m.Hello(m.VERSION, "client", {"bulk": "text"}), "bulk identity"),
        (m.Hello(m.VERSION, "worker", {}), "says its address"),
        (m.Hello(m.VERSION, "worker", {"address": 5, "bulk": b""}), "says its address"),
        (m.Hello(m.VERSION, "pulse", {"address": "ipc:///nobody"}), "a pulse of no worker"),
        (m.Hello(m.VERSION, "pulse", {}), "a pulse of no worker"),
    ],
)
def test_a_wrong_hello_is_answered(hello: m.Hello, says: str) -> None:
    """Who introduces itself wrongly is told what is wrong, and is not let in."""
    each = Service(1)
    each.say("x", hello)
    (goodbye,) = each.hears("x")
    assert says in goodbye.text
    assert b"x" not in {*each.core.service.clients, *each.core.service.workers, *each.core.handshake.pulses}


def test_a_pulse_that_is_faster_than_its_worker_is_no_fault() -> None:
    """It is so at each next dispatcher. It hears that it shall begin afresh, and nobody is warned."""
    each = Service(1)
    each.say("x", m.Hello(m.VERSION, "pulse", {"address": "ipc:///w1"}))
    each.say("x", m.Ping())
    assert [type(told) for told in each.hears("x")] == [m.Goodbye]
    assert each.core.service.counters.refused == 0
    assert not [line for line in each.log if "refused" in line]
    each.join("w1")
    each.hello("y", "pulse", address="ipc:///w1")
    assert each.hears("y", m.Welcome)


def test_a_second_hello_is_a_confused_peer() -> None:
    """Hello is said once on a connection; a second one ends the session."""
    each = started(1)
    each.say("c", m.Hello(m.VERSION, "client", {}))
    assert each.hears("c", m.Goodbye)
    assert each.core.service.clients == {}


def test_pulses_are_one_for_each_worker() -> None:
    """However many connections claim to speak for a worker, one is remembered, and none when it is gone."""
    each = Service(1)
    for name in ("p1", "p2", "p3"):
        each.hello(name, "pulse", address="ipc:///w0")
    assert list(each.core.handshake.pulses) == [b"p3"]
    each.event(Lost(b"w0", "killed"))
    assert each.core.handshake.pulses == {}


def test_what_a_process_had_sent_before_it_ended_is_no_mistake() -> None:
    """The end of a process may be noticed before its last words are read: they are passed over without a word, and those of
    a worker's second connection too. Of one that only seemed lost they are answered, as it may start afresh."""
    each = Service(2)
    each.client()
    each.put(1)
    each.hello("p0", "pulse", address="ipc:///w0")
    each.log.clear()
    for peer in (b"c", b"w0"):
        each.event(Lost(peer, "its process ended", ended=True))
    each.say("c", m.Free([1]))
    each.say("c", m.Ping())
    each.say("w0", m.Ping())
    each.say("p0", m.Ping())
    assert each.core.service.counters.refused == 0
    assert not [line for line in each.log if "refused" in line]
    assert not each.hears("c", m.Goodbye)
    each.client("d")
    each.event(Lost(b"d", "its connection broke"))
    each.say("d", m.Free([1]))
    assert each.core.service.counters.refused == 1
    assert len(each.hears("d", m.Goodbye)) == 1


def test_those_whose_processes_ended_are_not_remembered_for_ever() -> None:
    each = Service(1)
    for number in range(MAX_ENDED + 10):
        each.core.handle(Lost(b"%d" % number, "its process ended", ended=True), 0.0)
    assert len(each.core.disconnect.ended) == MAX_ENDED
    each.say(str(MAX_ENDED + 9), m.Free([1]))
    assert each.core.service.counters.refused == 0


def test_random_streams_never_do_more_than_be_refused() -> None:
    """Thousands of messages of random kinds and fields from one client leave the service, and another client, intact."""
    random = np.random.default_rng(7)
    each = Service(2, config=RULES)
    each.client("d")
    each.put(1, "d", signal=("net",))
    lines = Lines()
    x, w = lines.input(4), lines.input(4)
    configs = [Config.from_plain(plain).to_wire() for plain in (RULES, {"mesh": {"model": 1, "data": 2}}, {})]
    segments = [pack_segment(NEG), pack_segment(lines.segment(lines.op("add", x, w, signal=("net",)))), b"\x95", b""]

    def some(*choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    def ids() -> list[int]:
        return [int(n) for n in random.integers(0, 6, int(random.integers(0, 3)))]

    kinds: list[Any] = [
        lambda: m.Define(int(random.integers(0, 3)), some(*segments)),
        lambda: m.Run(
            int(random.integers(0, 4)), int(random.integers(0, 6)), ids(), some([], [1], [1.5]), ids(), ids()
        ),
        lambda: m.Put(int(random.integers(-1, 6)), ["f32", [4]], some([], ["net"]), some(True, False), bytes(16)),
        lambda: m.Free(ids()),
        lambda: m.Fetch(int(random.integers(0, 4)), int(random.integers(0, 6))),
        lambda: m.Drop(int(random.integers(0, 4))),
        lambda: m.Ask(1, "statistics"),
        lambda: m.Configure(9, some({}, *configs)),
        lambda: m.Options(some({}, {"verify": 0.5}, {"verify": 2}, {"x": 1})),
        lambda: m.WriteSnapshot(
            int(random.integers(0, 4)), "a", "0" * 16, ids(), some([], [["b"], -1, 1], [[], 0]), b"{}"
        ),
        lambda: m.Restore(
            int(random.integers(-1, 6)),
            ["f32", [4]],
            some([], ["net"]),
            int(random.integers(-1, 6)),
            "a",
            "0" * 16,
            "w",
            some([], ["user 1", 0, "R", [1]], ["user 1", -1, "", []], ["user 1", 0, "S0|", [1]]),
        ),
        lambda: m.ConfirmTensors(int(random.integers(0, 4)), ids()),
        lambda: m.Ask(
            1,
            some("snapshots", "snapshot a", "published", "published 1 a user 1", "published x", "revoke a", "revoke "),
        ),
        lambda: m.RequestMark(True),
        lambda: m.Settled(int(random.integers(0, 4))),
        lambda: m.Resume(int(random.integers(0, 4)), 0),
    ]
    each.client(resends=True)
    for _ in range(3000):
        each.say("c", kinds[int(random.integers(len(kinds)))]())
        if random.random() < 0.3:
            each.done()
        for worker in ("w0", "w1"):
            for told in each.hears(worker, m.Store, m.LoadPart, m.WritePart, m.CommitSnapshot, m.ReadSnapshots):
                if isinstance(told, m.LoadPart):
                    each.say(worker, m.Loaded(told.client, told.tensor, some([], ["SnapshotError", "damaged"])))
                elif not isinstance(told, m.Store):
                    each.say(worker, m.SnapshotReport(told.request, some([], ["SnapshotError", "full"]), [], b""))
                elif told.sender:
                    each.say(worker, m.Landed(told.client, told.tensor))
    assert {b"c", b"d"} <= set(each.core.service.clients)
    each.hears("d")
    each.say("d", m.Fetch(1, 1))
    assert each.hears("w0", m.Collect)[-1].client == 1


def test_a_definition_is_bounded_by_its_frame() -> None:
    """A definition beyond the limit is no message: it never reaches the core."""
    from gt.errors import ProtocolError

    with pytest.raises(ProtocolError):
        codec.decode(codec.encode(m.Define(1, bytes(MAX_DEFINITION_BYTES + 1))), codec.TO_DISPATCHER)
