"""A client's sockets while its dispatcher is gone. Nobody listens here: what matters is what the link does by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gt.bounds import MAX_INLINE_BYTES
from gt.client.session.socket_link import EDGE_SECONDS, SocketLink
from gt.daemon.host import host_facts
from gt.unix_sockets.dealer import UnixDealer
from gt.unix_sockets.router import UnixRouter
from gt.wire import messages as m
from gt.wire import transport
from gt.wire.bulk import ALL_WORKERS
from gt.wire.messages import codec
from gt.wire.reliable_stream import HEADER_BYTES

LONG_SECONDS = 20.0
"""What a message ends at once is waited for so long."""
HELLO = m.Hello(m.VERSION, "client", {"mark": 0})


class Daemons:
    """Daemons that were started for this process."""

    def __init__(self, failure: str | None = None) -> None:
        self.reason = failure

    def failure(self) -> str | None:
        return self.reason


@pytest.fixture
def link(tmp_path: Path) -> Iterator[SocketLink]:
    made = SocketLink(f"ipc://{tmp_path}/s")
    yield made
    made.close()


def welcomed(link: SocketLink, tmp_path: Path, **facts: Any) -> None:
    link.found_again({"number": 3, "bulk_address": f"ipc://{tmp_path}/bulk", **facts})


def waiting(link: SocketLink) -> list[Any]:
    """The messages that the control socket keeps until they are acknowledged."""
    return [codec.decode(list(frames[1:])) if len(frames) > 2 else frames for frames in link.control.stream.kept]


def test_new_sockets_are_opened_and_nothing_but_hello_is_sent(link: SocketLink, tmp_path: Path) -> None:
    welcomed(link, tmp_path, lease=7.0)
    link.send(m.Free([1]))
    link.send(m.Free([2]))
    before, bulk = link.control, link.bulk
    assert bulk is not None
    assert link.look_again(HELLO)
    assert (before.closed, bulk.closed, link.bulk) == (True, True, None)
    assert link.control is not before
    assert link.control.identity != before.identity, "it is another connection"
    assert link.control.lease == 7.0
    assert len(link.control.stream.kept) == 1
    frames = link.send(m.Free([3]))
    assert frames == codec.encode(m.Free([3]))
    link.send_frames(frames)
    link.send(m.Ping())
    assert len(link.control.stream.kept) == 1
    welcomed(link, tmp_path)
    assert link.bulk is not None
    assert link.bulk.identity == bulk.identity, "as the Hello has said"
    link.send_frames(frames)
    assert len(link.control.stream.kept) == 1, "the dispatcher does not know the session yet"
    link.rewind(4, ALL_WORKERS, {})
    assert (link.client, link.fetches.client) == (4, 4)
    link.send_frames(frames)
    assert len(link.control.stream.kept) == 2


@pytest.mark.parametrize("continues", [True, False])
def test_large_data_goes_on_where_it_was_if_the_dispatcher_is_the_same(
    link: SocketLink, tmp_path: Path, continues: bool
) -> None:
    """Workers give back what they were lent on the stream that they know; another dispatcher knows none."""
    welcomed(link, tmp_path)
    before = link.bulk
    assert before is not None
    before.send([b"a"])
    assert link.look_again(HELLO)
    assert link.look_again(HELLO)
    welcomed(link, tmp_path, lease=9.0, **({"continues": True} if continues else {}))
    assert link.bulk is not None
    assert (link.bulk is before) == continues
    assert link.bulk.identity == before.identity
    assert (link.bulk.closed, link.bulk.lease) == (False, 9.0)
    assert len(link.bulk.stream.kept) == continues
    assert link.left is None


def test_a_bulk_stream_that_nobody_knows_gets_another_name(link: SocketLink, tmp_path: Path) -> None:
    """Or the dispatcher would go on to say that it does not know it."""
    welcomed(link, tmp_path)
    before = link.bulk
    assert before is not None
    before.unknown, before.failed = True, "it is not known"
    assert link.look_again(HELLO)
    ((_, hello),) = link.control.stream.kept
    welcomed(link, tmp_path, continues=True)
    assert link.bulk is not None
    assert link.bulk is not before
    assert link.bulk.identity != before.identity
    assert link.alive() is None
    assert codec.decode([bytes(hello[0][HEADER_BYTES:])]) == HELLO._replace(
        facts={**HELLO.facts, "bulk": link.bulk.identity}
    )


def test_why_a_session_has_ended_is_awaited_where_its_bulk_socket_hears_of_it_first(
    link: SocketLink, tmp_path: Path
) -> None:
    """The control socket says why, if only a little later."""
    welcomed(link, tmp_path)
    assert link.bulk is not None
    link.bulk.unknown, link.bulk.failed = True, "it is not known"
    assert link.alive() is None
    link.unknown_since -= 1.1
    assert link.alive() == "it is not known"
    link.control.failed = "it has ended"
    assert link.alive() == "it has ended"
    assert link.look_again(HELLO)
    welcomed(link, tmp_path)
    assert (link.alive(), link.unknown_since) == (None, 0.0)


@pytest.mark.parametrize("closed", ["control", "bulk"])
def test_a_thread_waits_while_another_one_opens_the_connections_again(
    link: SocketLink, tmp_path: Path, closed: str
) -> None:
    """It may find a socket closed for which there is no other yet, and must not go on to wait for that one alone."""
    welcomed(link, tmp_path)
    getattr(link, closed).close()
    link.wait(0.0)
    assert not hasattr(link.pollers, "known")
    assert link.look_again(HELLO)
    link.wait(0.0)
    assert link.pollers.known[1] == link.control.socket.fileno()


class Asked:
    """Notes for how many milliseconds it is polled."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.milliseconds.append(milliseconds)
        return []


def test_it_waits_for_long_only_where_a_message_wakes_it(
    link: SocketLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many programs that wait do not occupy a core by that; whoever looks for a dispatcher looks often."""
    monkeypatch.setattr(UnixDealer, "broken", False)
    welcomed(link, tmp_path)
    link.wait(0.0)
    asked = Asked()
    link.pollers.known = (asked, link.pollers.known[1])
    link.wait(0.1)
    link.absent = True
    link.wait(0.1)
    assert asked.milliseconds == [100.0, 1000 * EDGE_SECONDS]


@pytest.mark.parametrize("why", ["broken", "elsewhere", "looked for", "over TCP"])
def test_it_looks_often_where_a_message_may_not_wake_it(
    link: SocketLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A connection that has ended may be opened again by another thread, ZeroMQ's descriptors signal edges, and another
    dispatcher is looked for now and then."""
    monkeypatch.setattr(UnixDealer, "broken", why == "broken")
    over_tcp = SocketLink("tcp://127.0.0.1:9") if why == "over TCP" else None
    waits = over_tcp or link
    try:
        if over_tcp is None:
            welcomed(link, tmp_path)
        waits.wait(0.0)
        asked = Asked()
        waits.pollers.known = (asked, waits.pollers.known[1])
        waits.search.address = "ipc:///elsewhere" if why == "elsewhere" else waits.search.address
        waits.absent = why == "looked for"
        waits.wait(0.1)
        waits.wait(EDGE_SECONDS / 4)
        assert asked.milliseconds == [1000 * EDGE_SECONDS, 250 * EDGE_SECONDS]
    finally:
        waits.search.address = ""
        if over_tcp is not None:
            over_tcp.close()


def test_a_message_ends_a_long_wait(tmp_path: Path) -> None:
    """It is there to be read then."""
    router = UnixRouter(str(tmp_path / "s"), 1 << 20)
    link = SocketLink(f"ipc://{tmp_path}/s")
    try:
        link.send(HELLO)
        while (found := router.receive()) is None:
            assert router.poll(int(1000 * LONG_SECONDS))
        begin = time.monotonic()
        assert router.send([b"answer"], found[0].identity)
        link.wait(LONG_SECONDS)
        assert time.monotonic() - begin < LONG_SECONDS
        assert link.control.socket.receive() == [b"answer"]
    finally:
        link.close()
        router.close()


def test_a_closed_socket_has_no_descriptor() -> None:
    """ZeroMQ's raise an error of their own."""
    dealer = transport.Dealer("tcp://127.0.0.1:9", b"g1")
    assert transport.descriptor(dealer.socket) >= 0
    dealer.close()
    assert transport.descriptor(dealer.socket) == -1


def test_it_is_looked_again_and_again(link: SocketLink) -> None:
    known = {link.control.identity}
    for _ in range(3):
        assert link.look_again(HELLO)
        known.add(link.control.identity)
    assert len(known) == 4
    link.wait(0.0)
    assert link.receive() == []


@pytest.mark.parametrize("failure", [None, "dispatcher exited with status 3"])
def test_daemons_that_are_not_started_again_are_not_waited_for(tmp_path: Path, failure: str | None) -> None:
    link = SocketLink(f"ipc://{tmp_path}/s", Daemons(failure))
    try:
        before = link.control
        assert link.alive() == failure
        assert link.look_again(HELLO) == (failure is None)
        assert link.absent == (failure is None)
        assert (link.control is before) == (failure is not None)
    finally:
        link.close()


def test_a_closed_link_looks_for_nobody(tmp_path: Path) -> None:
    link = SocketLink(f"ipc://{tmp_path}/s")
    link.close()
    assert not link.look_again(HELLO)
    assert link.control.closed


def test_the_end_of_the_process_is_looked_for_anew(link: SocketLink, tmp_path: Path) -> None:
    """One that runs is found, one on another machine is not."""
    welcomed(link, tmp_path, process=host_facts())
    assert link.process is not None
    assert link.alive() is None
    link.ended = 5.0
    link.look_again(HELLO)
    assert (link.process, link.ended) == (None, 0.0)
    welcomed(link, tmp_path, process={**host_facts(), "boot": "another"})
    assert link.process is None


def test_large_puts_are_kept_until_the_session_is_known(link: SocketLink, tmp_path: Path) -> None:
    """And offered to nobody."""
    welcomed(link, tmp_path)
    link.look_again(HELLO)
    array = np.arange(MAX_INLINE_BYTES + 1, dtype=np.uint8)
    put = link.prepare(array, "kind")
    assert put is not None
    kept = link.put_bulk(9, put)
    assert kept.nbytes == array.nbytes
    welcomed(link, tmp_path)
    assert link.bulk is not None
    assert len(link.bulk.stream.kept) == 0
    link.rewind(4, ALL_WORKERS, {9: kept})
    assert 9 in link.puts.waiting
    assert link.bulk.stream.kept == type(link.bulk.stream.kept)()
