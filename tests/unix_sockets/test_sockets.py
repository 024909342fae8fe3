"""A router and dealers over real Unix sockets, in one process."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from gt.bounds import MAX_UNFINISHED_BYTES
from gt.daemon.rate_limit import RateLimit
from gt.unix_sockets import router as router_module
from gt.unix_sockets.dealer import UnixDealer
from gt.unix_sockets.framing import GREETING, opening, packed
from gt.unix_sockets.router import UnixRouter
from gt.unix_sockets.stream_socket import PeerProcess
from gt.wire import transport

FRAME_BYTES = 32 << 20
TIMEOUT_MS = 20_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def router(path: str) -> Iterator[UnixRouter]:
    made = UnixRouter(path, FRAME_BYTES)
    yield made
    made.close()


@pytest.fixture
def dealer(router: UnixRouter) -> Iterator[UnixDealer]:
    made = UnixDealer(str(router.path), b"g-dealer", FRAME_BYTES)
    yield made
    made.close()


def heard(router: UnixRouter) -> tuple[bytes, list[bytes]]:
    """The next message, once it is there."""
    while (found := router.receive()) is None:
        assert router.poll(TIMEOUT_MS)
    return found[0].identity, [bytes(frame) for frame in found[1]]


def answer(dealer: UnixDealer) -> list[bytes]:
    while (found := dealer.receive()) is None:
        assert dealer.poll(TIMEOUT_MS)
        assert not dealer.broken
    return [bytes(frame) for frame in found]


def until_broken(router: UnixRouter, dealer: UnixDealer) -> None:
    while not dealer.broken:
        assert dealer.poll(TIMEOUT_MS)
        dealer.receive()
        router.receive()


def raw(router: UnixRouter) -> socket.socket:
    """A connection that says nothing by itself."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(TIMEOUT_MS / 1000)
    made.connect(str(router.path))
    return made


def is_ended(stranger: socket.socket) -> bool:
    """Whether a connection is ended, and its other end has said nothing but who it is."""
    said = b""
    while part := stranger.recv(1 << 10):
        said += part
    return said in (b"", opening(b"ROUTER"))


def test_messages_go_both_ways_and_know_their_sender(router: UnixRouter, dealer: UnixDealer) -> None:
    assert dealer.send([b"question", b""])
    while (found := router.receive()) is None:
        assert router.poll(TIMEOUT_MS)
    stream, frames = found
    assert (stream.identity, frames) == (b"g-dealer", [b"question", b""])
    assert stream.process == (os.geteuid(), os.getpid())
    assert router.send([b"answer"], b"g-dealer")
    assert answer(dealer) == [b"answer"]
    assert not router.send([b"answer"], b"g-nobody")


def test_what_is_held_leaves_together(router: UnixRouter, dealer: UnixDealer) -> None:
    """In order, before what is sent after it, and nothing before."""
    dealer.send([b"before"])
    assert heard(router)[1] == [b"before"]
    dealer.hold()
    assert dealer.send([b"one"])
    assert dealer.send([b"two", b"frames"])
    assert dealer.holds
    assert router.receive() is None
    dealer.let_go()
    assert not dealer.holds
    dealer.send([b"after"])
    assert [heard(router)[1] for _ in range(3)] == [[b"one"], [b"two", b"frames"], [b"after"]]


def test_several_messages_in_one_read_make_their_socket_ready(router: UnixRouter, dealer: UnixDealer) -> None:
    """The kernel has nothing any more then, so whoever polls a descriptor asks the socket first."""
    for number in range(3):
        dealer.send([b"%d" % number])
    assert heard(router)[1] == [b"0"]
    assert router.has_more
    assert router.poll(0)
    assert [heard(router)[1] for _ in range(2)] == [[b"1"], [b"2"]]
    assert not router.has_more
    for number in range(2):
        router.send([b"%d" % number], b"g-dealer")
    assert answer(dealer) == [b"0"]
    assert dealer.poll(0)
    assert answer(dealer) == [b"1"]
    assert dealer.receive() is None


def test_what_there_is_no_room_for_is_sent_by_a_thread(router: UnixRouter, dealer: UnixDealer) -> None:
    """More than the kernel takes, in messages of all sizes: nobody waits, and all arrive in order."""
    messages = [[b"%d" % number, bytes([number]) * (number * 50_000)] for number in range(40)]
    for message in messages:
        assert dealer.send(message)
    assert [heard(router) for _ in messages] == [(b"g-dealer", message) for message in messages]
    for message in messages:
        assert router.send(message, b"g-dealer")
    assert [answer(dealer) for _ in messages] == messages


def test_what_was_sent_leaves_before_the_socket_is_closed(router: UnixRouter, dealer: UnixDealer) -> None:
    dealer.send([b"small"])
    assert heard(router)[1] == [b"small"]
    dealer.send([b"last words"])
    dealer.close(linger=1000)
    assert heard(router)[1] == [b"last words"]


def test_connections_take_turns(router: UnixRouter, dealer: UnixDealer) -> None:
    other = UnixDealer(str(router.path), b"g-other", FRAME_BYTES)
    for _ in range(3):
        dealer.send([b""])
        other.send([b""])
    peers = [heard(router)[0] for _ in range(6)]
    assert peers[0] != peers[1]
    assert sorted(peers) == [b"g-dealer"] * 3 + [b"g-other"] * 3
    other.close()


def test_a_new_connection_replaces_the_one_before(router: UnixRouter, dealer: UnixDealer) -> None:
    dealer.send([b"one"])
    assert heard(router)[1] == [b"one"]
    again = UnixDealer(str(router.path), b"g-dealer", FRAME_BYTES)
    again.send([b"two"])
    assert heard(router)[1] == [b"two"]
    until_broken(router, dealer)
    router.send([b"answer"], b"g-dealer")
    assert answer(again) == [b"answer"]
    again.close()


def test_a_broken_connection_is_noticed_and_its_descriptor_falls_silent(path: str) -> None:
    """Whoever polls it does not spin until the connection is opened again."""
    router = UnixRouter(path, FRAME_BYTES)
    dealer = UnixDealer(path, b"g-dealer", FRAME_BYTES)
    dealer.send([b"one"])
    assert heard(router)[1] == [b"one"]
    router.send([b"last words"], b"g-dealer")
    router.close()
    assert answer(dealer) == [b"last words"]
    while not dealer.broken:
        assert dealer.poll(TIMEOUT_MS)
        assert dealer.receive() is None
    assert not dealer.poll(0)
    assert not dealer.send([b"two"])
    assert dealer.receive() is None
    dealer.close()


def test_a_spare_descriptor_that_is_taken_away_is_had_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there are no descriptors, whoever connects is hung up by a spare one; somebody else may be quicker to have that."""
    router = UnixRouter(path, FRAME_BYTES)
    opened, accepted = os.open, socket.socket.accept
    tries = iter([True, True, True, True])  # accepting fails twice, opening fails, accepting fails

    def short(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if next(tries, False):
                raise OSError(errno.EMFILE, "Too many open files")
            return call(*arguments)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", short(accepted))
        patch.setattr(os, "open", short(opened))
        refused = UnixDealer(path, b"g-refused", FRAME_BYTES)
        assert router.receive() is None
    while not refused.broken:
        assert refused.poll(TIMEOUT_MS)
        assert refused.receive() is None
    dealer = UnixDealer(path, b"g-dealer", FRAME_BYTES)
    dealer.send([b"one"])
    assert heard(router)[1] == [b"one"]
    for each in (refused, dealer, router):
        each.close()


def test_who_connects_to_nobody_is_broken_at_once(path: str) -> None:
    dealer = UnixDealer(path, b"g-dealer", FRAME_BYTES)
    assert dealer.broken
    assert not dealer.poll(0)
    assert not dealer.send([b"one"])
    dealer.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1", opening(b"SUB"), opening(b"DEALER", b"\0zero"), opening(b"DEALER", bytes(256)),
        GREETING + packed([b"before READY"]), opening(b"DEALER", b"g") + b"\x02" + (FRAME_BYTES + 1).to_bytes(8, "big"),
        b"\xff" * 64,
    ],
)  # fmt: skip
def test_a_connection_that_says_what_it_may_not_is_ended(router: UnixRouter, said: bytes) -> None:
    with raw(router) as stranger:
        stranger.sendall(said)
        assert router.poll(TIMEOUT_MS)
        while router.receive() is not None or router.poll(0):
            pass
        assert is_ended(stranger)
    assert router.refused == 1


def test_many_that_say_nothing_make_room(
    router: UnixRouter, dealer: UnixDealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "MAX_NAMELESS", 3)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(raw(router)) for _ in range(5)]
        dealer.send([b"one"])
        assert heard(router)[1] == [b"one"]
        for stranger in strangers[:2]:
            assert is_ended(stranger)
        assert router.refused == 2
        dealer.send([b"two"])
        assert heard(router)[1] == [b"two"]


def test_messages_that_do_not_end_are_bounded_together(router: UnixRouter, dealer: UnixDealer) -> None:
    """The connections with the longest are ended, and the others go on."""
    strangers = []
    count = MAX_UNFINISHED_BYTES // FRAME_BYTES + 1
    for number in range(count):
        stranger = UnixDealer(str(router.path), b"g%d" % number, FRAME_BYTES)
        stranger.send([b"whole"])
        assert heard(router)[1] == [b"whole"]
        strangers.append(stranger)
    unfinished = packed([bytes(FRAME_BYTES - 1024)])[:-1]
    for stranger in strangers:
        send: Any = stranger._stream
        at = 0
        while at < len(unfinished) and not stranger.broken:
            try:
                at += send._send(unfinished[at:])
            except BlockingIOError:
                router.receive()
            except OSError:
                break
    for _ in range(2):
        dealer.send([b"one"])
        assert heard(router)[1] == [b"one"]
    assert router.refused == 1
    for stranger in strangers:
        stranger.close()


def test_who_has_most_of_what_does_not_end_loses_a_connection(router: UnixRouter, dealer: UnixDealer) -> None:
    """Not whoever has the longest message: many short ones of another would end each long one."""
    count = 65
    piece = MAX_UNFINISHED_BYTES // count + 100_000
    many = [UnixDealer(str(router.path), b"g%d" % number, FRAME_BYTES) for number in range(count)]
    for each in (dealer, *many):
        each.send([b"here"])
        identity, _ = heard(router)
        router._peers[identity].process = PeerProcess(1, 1) if each is dealer else PeerProcess(2, 2)
    before = [stream.process for stream in router._peers.values()]
    assert before.count(PeerProcess(2, 2)) == count

    def begin(each: UnixDealer, nbytes: int) -> None:
        """Send the beginning of a message."""
        data = packed([bytes(FRAME_BYTES)])[: nbytes + 9]
        while data and not each.broken:
            try:
                data = data[each._stream._send(data) :]
            except BlockingIOError:
                router.receive()
            except OSError:
                return

    begin(dealer, 4 * piece)
    for each in many:
        begin(each, piece)
    while router.receive() is not None or not router.refused:
        pass
    assert router.refused > 0
    assert b"g-dealer" in router._peers
    for each in many:
        each.close()


def test_a_program_leaves_connections_for_others(router: UnixRouter) -> None:
    """Of its user's, and those for other users."""
    router.room = 100
    dealers = [UnixDealer(str(router.path), b"g%d" % number, FRAME_BYTES) for number in range(85)]
    while router.poll(100):
        router.receive()
    here = PeerProcess(os.getuid(), os.getpid())
    assert (len(router._peers), router.refused) == (81, 4)
    assert not router._has_room(here)
    assert router._has_room(here._replace(pid=1))
    assert router._has_room(PeerProcess(here.uid + 1, 1))
    for each in dealers:
        each.close()
    while router.poll(100):
        router.receive()
    assert not router._of_program
    assert not router._of_user


def test_a_program_opens_so_many_connections_at_once_and_then_a_second(
    router: UnixRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """Those beyond that are hung up, which is logged once. What new connections take is counted as nobody's who was heard."""
    router.program_rate = RateLimit(3, 0.001)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(raw(router)) for _ in range(8)]
        while router.poll(100):
            assert router.receive(polled=True) is None
        assert all(is_ended(each) for each in strangers[3:])
        assert len(router._streams) == 3
    assert router.refused == 5
    (record,) = caplog.records
    assert f"process {os.getpid()} of user {os.getuid()} opens more than 0.001 a second" in record.getMessage()
    assert transport.take_accept_seconds(router) > 0
    assert transport.take_accept_seconds(router) == 0


def test_no_program_uses_up_what_its_user_may_open(router: UnixRouter) -> None:
    router.user_rate = RateLimit(20, 0.001)
    runaway, other = PeerProcess(7, 1), PeerProcess(7, 2)
    assert [router._is_too_fast(runaway) for _ in range(25)] == [False] * 18 + [True] * 7
    assert not router._is_too_fast(other)
    assert not router._is_too_fast(PeerProcess(8, 3))


def test_connections_beyond_the_limit_are_hung_up(router: UnixRouter, dealer: UnixDealer) -> None:
    dealer.send([b"one"])
    assert heard(router)[1] == [b"one"]
    router.limit = 3
    with raw(router) as stranger:
        assert router.poll(TIMEOUT_MS)
        assert router.receive(polled=True) is None
        assert is_ended(stranger)
    assert router.refused == 1
    dealer.send([b"two"])
    assert heard(router)[1] == [b"two"]


@pytest.mark.parametrize("identity", [b"g-zeromq", b""])
def test_a_dealer_of_zeromqs_own_is_served(router: UnixRouter, identity: bytes) -> None:
    """One without an identity is given one; its heartbeats are answered; it may be closed and come again."""
    with zmq.Context() as context:
        for _ in range(2):
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.HEARTBEAT_IVL, 20)
            dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1000)
            if identity:
                dealer.setsockopt(zmq.ROUTING_ID, identity)
            dealer.connect(f"ipc://{router.path}")
            ended = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            for number, size in enumerate((1, 300, 100_000) * 20):
                dealer.send_multipart([b"%d" % number, bytes(size)])
                peer, frames = heard(router)
                assert frames == [b"%d" % number, bytes(size)]
                assert peer == identity or (peer[:1] == b"\0" and not identity)
                assert router.send([b"answer", bytes(size)], peer)
                assert dealer.recv_multipart() == [b"answer", bytes(size)]
            until = time.monotonic() + 1.2
            while time.monotonic() < until:  # pings alone, until it has missed answers for as long as it waits
                router.poll(20)
                assert router.receive(polled=True) is None
            assert not ended.poll(0)
            ended.close(linger=0)
            dealer.disable_monitor()
            dealer.close(linger=0)
    assert router.refused == 0


def test_the_path_goes_with_its_owner_and_not_with_an_earlier_one(path: str) -> None:
    first = UnixRouter(path, FRAME_BYTES)
    second = UnixRouter(path, FRAME_BYTES)
    first.close()
    assert Path(path).exists()
    second.close()
    assert not Path(path).exists()
    with Path(os.devnull).open() as other:  # has the number of a descriptor that was closed
        first.close()
        second.close()
        assert os.fstat(other.fileno())
