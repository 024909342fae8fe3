"""Who is who: what a principal may be, and that nobody uses up what others need, whatever it says of itself."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_dispatcher import Service

from gt.bounds import MAX_BULK_BYTES, MAX_SENT_BULK_BYTES, MAX_UNREAD_BULK_BYTES
from gt.daemon.rate_limit import RateLimit
from gt.dispatcher.access import NOBODY, Access, process_to_watch
from gt.dispatcher.bulk_relay import BulkRelay
from gt.dispatcher.handlers import handshake
from gt.dispatcher.jobs.round_robin import RoundRobin
from gt.dispatcher.state.events import Malformed
from gt.dispatcher.state.principal_limits import refusal
from gt.dispatcher.telemetry.subscribers import MAX_WATCHERS
from gt.wire import messages as m
from gt.wire.bulk import DATA, GET, MAX_IN_FLIGHT_BYTES, OFFER, PUT, WROTE
from gt.wire.connection import Connection
from gt.wire.principals import (
    ALL_ROLES,
    HELLO_ROLES,
    OBSERVER,
    OPERATOR,
    OWN_PROCESS,
    USER,
    WORKER,
    Origin,
    Principal,
    PrincipalRole,
    ProgramIdentity,
    program_of,
)
from gt.wire.transport import PeerCredentials

FACTS = {"host": "here", "namespace": "pid:[1]", "boot": "b"}
OWNER = Principal("user 1000")
GUEST = Principal("user 1001", frozenset({USER}))


def fill(each: Service, name: str, principal: Principal, pids: itertools.count[int], *, kernel: bool) -> int:
    """Open sessions, each of another process, as fast as that is allowed, until there is no room; how many."""
    for number in itertools.count():
        pid = next(pids)
        peer = f"{name}{number}"
        each.origins[peer] = Origin(principal, pid if kernel else 0)
        each.hello(peer, "client", bulk=b"", **FACTS, pid=pid)
        (answer,) = each.hears(peer)
        if isinstance(answer, m.Goodbye):
            if "try again in" not in answer.text:
                return number
            each.now += 1.0  # it is as patient as it must be
            each.hello(peer, "client", bulk=b"", **FACTS, pid=pid)
            each.hears(peer)
    raise AssertionError


@pytest.mark.parametrize("kernel", [True, False])
def test_whoever_invents_programs_shuts_out_nobody(monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    """One principal that opens sessions without end, each of a process of its own, leaves a tenth of all to others."""
    monkeypatch.setattr(handshake, "MAX_CLIENTS", 100)
    each = Service(1)
    pids = itertools.count(1)
    assert fill(each, "a", OWNER, pids, kernel=kernel) == 90
    assert fill(each, "b", GUEST, pids, kernel=kernel) == 9
    for number in range(90):
        each.say(f"a{number}", m.Goodbye("", ""))
    each.now += 100
    assert fill(each, "c", GUEST, pids, kernel=kernel) == 90 - 9, "what nobody else has is there for whoever comes"


def test_a_runaway_program_leaves_room_for_its_owners_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its principal's share, it gets all but a tenth."""
    monkeypatch.setattr(handshake, "MAX_CLIENTS", 100)
    each = Service(1)
    assert fill(each, "a", OWNER, itertools.repeat(7), kernel=True) == 81  # type: ignore[arg-type]
    assert fill(each, "b", OWNER, itertools.repeat(8), kernel=True) == 9  # type: ignore[arg-type]


def test_a_principal_that_reconnects_in_a_loop_shuts_out_nobody() -> None:
    """Neither another principal nor, within its own rate, a program that has opened nothing yet."""
    each = Service(1)
    burst, _ = handshake.PRINCIPAL_RATE
    refused = None
    for number in range(burst):
        each.origins["loop"] = Origin(OWNER, 10 + number // handshake.PROGRAM_RATE[0])
        each.hello("loop", "client", bulk=b"")
        (answer,) = each.hears("loop")
        if isinstance(answer, m.Goodbye):
            refused = answer
            break
        each.say("loop", m.Goodbye("", ""))
    assert refused is not None
    assert "this user's programs" in refused.text
    assert "try again in" in refused.text
    for name, principal in (("own", OWNER), ("other", GUEST)):
        each.origins[name] = Origin(principal, 9)
        assert each.client(name) > 0


def test_watchers_are_shared_out_too() -> None:
    """One program that watches without end leaves room for others."""
    each = Service(1)
    answers = []
    for number in range(MAX_WATCHERS):
        each.origins[f"t{number}"] = Origin(OWNER, 7)
        each.hello(f"t{number}", "watcher")
        answers += each.hears(f"t{number}", m.Welcome, m.Goodbye)
    assert isinstance(answers[0], m.Welcome)
    assert "no more of this program" in answers[-1].text
    each.origins["other"] = Origin(OWNER, 8)
    each.hello("other", "watcher")
    assert each.hears("other", m.Welcome)


@given(st.lists(st.integers(0, 5), max_size=200), st.integers(1, 60))
def test_nobody_takes_the_last_tenth_of_what_others_leave(asked: list[int], limit: int) -> None:
    """Whoever asks, in any order: never more than the limit, and a principal that holds nothing gets something, while the
    limit is ten times the number of principals before it or more."""
    held: list[ProgramIdentity] = []
    for principal in asked:
        program = ProgramIdentity(str(principal), 1)
        if refusal(limit, held, program) is None:
            held.append(program)
    assert len(held) <= limit
    holders = {each.principal for each in held}
    if limit >= 10 and len(holders) == 1:
        assert refusal(limit, held, ProgramIdentity("new", 1)) is None


def test_a_reserve_of_a_rate_is_for_others() -> None:
    rate = RateLimit(10, 2.0)
    for _ in range(9):
        rate.take("a", 0.0)
    assert rate.wait("a", 0.0, reserved=1) == pytest.approx(0.5)
    assert rate.wait("a", 0.0) == 0
    assert rate.wait("a", 0.5, reserved=1) == 0


def test_principals_take_turns_and_so_do_their_programs() -> None:
    """Many programs of one principal get no more turns than the only one of another."""
    ring: RoundRobin[str] = RoundRobin()
    for process in range(3):
        ring.add(ProgramIdentity("a", process), f"a{process}")
    ring.add(ProgramIdentity("b", 0), "b")
    assert ring.owners() == [ProgramIdentity(*each) for each in (("a", 0), ("b", 0), ("a", 1), ("a", 2))]
    assert [ring.next() for _ in range(8)] == ["a0", "b", "a1", "b", "a2", "b", "a0", "b"]
    ring.check()


# roles


@pytest.mark.parametrize("hello", HELLO_ROLES)
@pytest.mark.parametrize("role", [None, *PrincipalRole])
def test_a_principal_joins_as_its_roles_allow(role: PrincipalRole | None, hello: str) -> None:
    """For each role of a principal and each role of a Hello: it is let in, or told what it needs, and counted."""
    each = Service(1)
    each.join("w")
    each.hears("w")
    for worker in each.core.service.workers.values():
        worker.principal = Principal("key x", frozenset({WORKER}))  # the same, so that a pulse has its worker
    each.origins["p"] = Origin(Principal("key x", frozenset({role} if role else ())))
    each.hello("p", hello, address="ipc:///w", bulk=b"")
    (answer,) = each.hears("p", m.Welcome, m.Goodbye)
    assert isinstance(answer, m.Welcome) == (role in HELLO_ROLES[hello])
    if isinstance(answer, m.Goodbye):
        assert answer.kind == "SessionError"
        assert answer.text.startswith(f"key x may not join as {hello}: that needs the role ")
        told = {
            "client": "user",
            "watcher": "observer",
            "seeker": "user",
            "inquirer": "observer",
            "standby": "",
            "prober": "observer",
        }
        assert (f"--role {told.get(hello, 'worker')}" in answer.text) == bool(HELLO_ROLES[hello])
        assert each.core.service.counters.refused == 1
        assert not each.core.knows(b"p")
        assert any("refused a peer: key x" in line for line in each.log)


def test_a_pulse_is_of_its_own_principals_worker() -> None:
    """Who may run workers speaks for its own alone."""
    each = Service(0)
    for name, principal in (("mine", "key a"), ("other", "key b")):
        each.origins[name] = Origin(Principal(principal, frozenset({WORKER})))
    each.join("mine")
    each.hello("other", "pulse", address="ipc:///mine")
    (answer,) = each.hears("other")
    assert answer.text.startswith("a pulse of no worker")
    each.origins["pulse"] = each.origins["mine"]
    each.hello("pulse", "pulse", address="ipc:///mine")
    assert each.hears("pulse", m.Welcome)


def test_only_an_operator_cancels() -> None:
    """An observer is not offered it, and refused when it asks all the same."""
    each = Service(1, capabilities=("cancel",))
    number = each.client()
    for name, role in (("sees", OBSERVER), ("acts", OPERATOR)):
        each.origins[name] = Origin(Principal(f"key {name}", frozenset({role})))
        each.hello(name, "watcher")
        (welcome,) = each.hears(name, m.Welcome)
        assert welcome.facts["capabilities"] == (["cancel"] if role is OPERATOR else [])
        each.say(name, m.Cancel(1, number))
        (answer,) = each.hears(name, m.Answer, m.Failed)
        assert isinstance(answer, m.Answer) == (role is OPERATOR)


# who is who


def test_a_user_is_who_the_kernel_says() -> None:
    """On ipc: the service's own user may do everything, another one may run programs, one who is not known nothing."""
    access = Access("ipc:///run/x", uid=1000)
    for uid, pid, roles in ((1000, 7, ALL_ROLES), (1001, 8, frozenset({USER}))):
        found = access.origin(PeerCredentials(uid, pid))
        assert found.pid == pid
        assert found.principal[:2] == (f"user {uid}", roles)
        assert f"uid:{uid}" in found.principal.aliases
    assert access.origin(PeerCredentials()) == Origin(NOBODY)


def test_a_service_on_ipc_needs_no_folder_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user may have no home folder: then there are no groups but those of the machine."""

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("GT_KEYS", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    access = Access("ipc:///run/x", uid=1000)
    assert access.origin(PeerCredentials(1000, 7)).principal[:2] == ("user 1000", ALL_ROLES)


def test_a_program_is_the_process_that_the_kernel_says() -> None:
    """What it says of itself counts only where the kernel says nothing, and then only among those of its principal."""
    ours = Origin(OWNER, 5)
    assert program_of(b"x", {**FACTS, "pid": 7}, ours) == program_of(b"y", {**FACTS, "pid": 8}, ours)
    remote = Origin(OWNER)
    assert program_of(b"x", {**FACTS, "pid": 7}, remote) == program_of(b"y", {**FACTS, "pid": 7}, remote)
    assert program_of(b"x", {**FACTS, "pid": 7}, remote) != program_of(b"x", {**FACTS, "pid": 7}, Origin(GUEST))
    said = {"pid": 7, "host": ["long"] * 9, "namespace": ""}
    assert program_of(b"x", said, remote).process == b"x", "what it says is no name"


def test_the_process_to_watch_is_certain() -> None:
    """It is the kernel's, or on TCP one of this very machine, boot and namespace: a clone of the machine has another boot."""
    said = {**FACTS, "pid": 7}
    assert process_to_watch(said, Origin(OWNER, 5), FACTS) == 5
    assert process_to_watch(said, OWN_PROCESS, FACTS) == 7
    for key in ("host", "namespace", "boot"):
        assert process_to_watch({**said, key: "other"}, OWN_PROCESS, FACTS) == 0
        assert process_to_watch({**said, key: ""}, OWN_PROCESS, {**FACTS, key: ""}) == 0, "unknown is not the same"
    for pid in ("7", True, 0, -1):
        assert process_to_watch({**FACTS, "pid": pid}, OWN_PROCESS, FACTS) == 0


def test_a_bulk_identity_is_known_to_nobody_else(tmp_path: Path) -> None:
    """Others are told a name, from which the identity does not follow; who never said Hello is refused and counted."""
    relay = BulkRelay(f"ipc://{tmp_path}/bulk", lambda: None)
    try:
        name = relay.introduce(b"worker")
        relay.admit(name)
        assert name != b"worker"
        assert relay.introduce(5) == 5, "the core says what is wrong with that"
        relay._pass(b"stranger", [name, b"header", b"payload"])
        relay._pass(name, [name, b"header", b"payload"])
        assert relay.router.refused == 2, "a name is no identity"
        relay._pass(b"worker", [name, b"header", b"payload"])
        assert relay.router.refused == 2
        assert len(relay.router.streams[b"worker"].kept) == 1, "it connects soon"
        relay.keep([])
        relay._pass(b"worker", [name, b"header", b"payload"])
        assert relay.router.refused == 3, "it has left"
    finally:
        relay.router.socket.close()


def test_a_client_begins_anew_by_the_identity_of_a_session_that_has_ended(tmp_path: Path) -> None:
    """Its former stream is forgotten before anything that it says from then on is read."""
    relay = BulkRelay(f"ipc://{tmp_path}/bulk", lambda: None)
    relay._beat_at = math.inf
    connections = []

    def connected() -> Connection:
        connections.append(Connection(relay.address, identity=b"client"))
        while not connections[-1].accepted:
            relay._drain()
            assert connections[-1].receive() is None
        return connections[-1]

    try:
        names = [relay.introduce(b"client"), relay.introduce(b"worker")]
        relay.admit(names[1])
        offer = msgpack.packb([OFFER, GET, 1, 1, 0, 100])
        connected().send([names[1], offer, b""])
        relay.router.socket.poll(10_000)
        relay._drain()
        assert relay.router.streams[b"client"].heard == 1
        assert relay.unread[b"worker"]
        connections[0].close()
        relay.keep(names[1:])
        assert relay.introduce(b"client") == names[0]
        assert connected().stream.acknowledged == 0
        assert relay.router.streams[b"client"].heard == 0
        assert b"client" not in relay.windows
        assert not relay.unread[b"worker"]
    finally:
        for connection in connections:
            connection.close()
        relay.router.socket.close()


def test_clients_send_each_other_no_bulk_data(tmp_path: Path) -> None:
    """Whatever one knows of another: nothing of it is kept."""
    relay = BulkRelay(f"ipc://{tmp_path}/bulk", lambda: None)
    try:
        for client in (b"one", b"other"):
            relay.introduce(client)
        data = msgpack.packb([DATA, PUT, 1, 1, 0, 0])
        relay._pass(b"one", [relay.introduce(b"other"), data, bytes(1000)])
        assert relay.router.refused == 1
        assert b"other" not in relay.router.streams
    finally:
        relay.router.socket.close()


def test_grants_that_wait_pass_as_soon_as_workers_have_sent_what_they_may(tmp_path: Path) -> None:
    """Also where the client says nothing meanwhile: what was written to its memory has no bytes that it would acknowledge."""
    relay = BulkRelay(f"ipc://{tmp_path}/bulk", lambda: None)
    try:
        worker, client = relay.introduce(b"worker"), relay.introduce(b"client")
        relay.admit(worker)
        count = MAX_UNREAD_BULK_BYTES // MAX_IN_FLIGHT_BYTES
        for item in range(count + 2):
            offer = msgpack.packb([OFFER, GET, 1, item, 0, MAX_IN_FLIGHT_BYTES])
            relay._pass(b"client", [worker, offer, b""])
        assert relay.router.streams[b"worker"].sent == count
        for item in range(2):
            relay._pass(b"worker", [client, msgpack.packb([WROTE, GET, 1, item, 0, 0]), b""])
            assert relay.router.streams[b"worker"].sent == count + 1 + item
    finally:
        relay.router.socket.close()


def test_who_sends_bulk_data_that_no_worker_reads_ends_its_session(tmp_path: Path) -> None:
    """It is counted until the worker acknowledges it; beyond the bound nothing passes any more, and the core is told."""
    relay = BulkRelay(f"ipc://{tmp_path}/bulk", lambda: None)
    try:
        worker, client = relay.introduce(b"worker"), relay.introduce(b"client")
        relay.admit(worker)
        data, chunk = msgpack.packb([DATA, PUT, 1, 1, 0, 0]), memoryview(bytes(MAX_BULK_BYTES))
        count = MAX_SENT_BULK_BYTES // MAX_BULK_BYTES - 1
        for _ in range(3):
            for _ in range(count):
                relay._pass(b"client", [worker, data, chunk])
            stream = relay.router.streams[b"worker"]
            stream.acknowledge(stream.sent)
        assert relay.take() == []
        for _ in range(2 * count):
            relay._pass(b"client", [worker, data, chunk])
        (event,) = relay.take()
        assert isinstance(event, Malformed)
        assert (event.peer, event.bulk) == (client, True)
        assert relay.router.streams[b"worker"].unread_bytes < MAX_SENT_BULK_BYTES + 2 * MAX_BULK_BYTES
    finally:
        relay.router.socket.close()
