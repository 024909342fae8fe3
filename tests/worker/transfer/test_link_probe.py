"""Links that are measured by probes, and pieces that are packed where that is sooner: with a clock and a network of the test."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.worker.base.events import ToDispatcher, ToPeer
from gt.worker.transfer.compression import MIN_COMPRESSED_BYTES, ROUND_TRIP_FACTOR, SAMPLE_BYTES, Packer, packer
from gt.worker.transfer.link_probe import LARGE_PROBE_BYTES, PROBES_PER_SIZE, LinkProbes, LinkSpeed
from gt.worker.transfer.peers import MAX_PROBED, Peers


class Clock:
    """What compressing takes, at so many bytes a second."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.now = 0.0
        self.packed: list[int] = []

    def __call__(self) -> float:
        return self.now

    def pack(self, data: memoryview) -> bytes:
        self.now += len(data) / self.speed
        self.packed.append(len(data))
        return zlib.compress(data, 1)


def unpack(data: bytes, nbytes: int) -> bytes:
    return zlib.decompress(data, bufsize=nbytes)


def wire(
    first: Peers, second: Peers, bandwidth: float, latency: float, jitter: Callable[[int], float] = lambda n: 0.0
) -> list[m.Linked]:
    """Deliver what two workers say to each other over a link, until they are silent; what they tell the dispatcher."""
    ends = {"0": first, "1": second}
    now, count = 0.0, 0
    said: list[m.Linked] = []
    while first.out or second.out:
        for peers in (first, second):
            for send in [peers.out.pop(0) for _ in range(len(peers.out))]:
                if isinstance(send, ToDispatcher):
                    assert isinstance(send.message, m.Linked)
                    said.append(send.message)
                else:
                    assert isinstance(send, ToPeer)
                    message = codec.decode(codec.encode(send.message))
                    now += latency + len(getattr(message, "data", b"")) / bandwidth + jitter(count)
                    count += 1
                    ends[send.address].hear(message, now)
    return said


def pair(*packers: Packer | None) -> tuple[Peers, Peers]:
    peers = tuple(Peers(None, LinkProbes(), each) for each in packers)
    for number, each in enumerate(peers):
        each.number = number
    return peers[0], peers[1]


@given(st.floats(1e4, 1e9), st.floats(1e-6, 1e-1), st.integers(0, 2 * PROBES_PER_SIZE - 1))
def test_a_link_is_measured_as_it_is(bandwidth: float, latency: float, hiccup: int) -> None:
    """Bandwidth and latency come out, also when something held up one of the probes."""
    first, second = pair(None, None)
    first.know(1, "1", 0.0)
    second.know(0, "0", 0.0)
    # the one side measures while the other is silent: what both send at once shares the link
    probe = second.out.pop()
    said = wire(first, second, bandwidth, latency, lambda n: 7.0 if n == 2 * hiccup else 0.0)
    assert isinstance(probe, ToPeer)
    (link,) = said
    assert link.worker == 1
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert link.latency == pytest.approx(latency * 1e9, rel=1e-3, abs=1)
    assert not first.links.trials if first.links else False


def test_both_ends_measure_and_one_link_is_measured_once() -> None:
    """However often a worker is named, in meshes and introductions, there is one trial of each end."""
    first, second = pair(None, None)
    for _ in range(3):
        first.know(1, "1", 0.0)
        second.know(0, "0", 0.0)
    said = wire(first, second, 1e6, 1e-3)
    assert sorted(link.worker for link in said) == [0, 1]
    first.know(1, "1", 9.0)
    assert first.out == []


def test_a_probe_of_somebody_unknown_is_answered_when_it_is_known_where_it_is() -> None:
    """Introductions may be overtaken by the first probe. A flood of nobody's probes takes a bounded place."""
    peers, _ = pair(None, None)
    for worker in range(1, MAX_PROBED + 100):
        peers.hear(m.Probe(worker, 0, b""), 0.0)
    assert peers.out == []
    assert len(peers.probed) == MAX_PROBED
    peers.know(5, "5", 0.0)
    assert ToPeer("5", m.Echo(0, 0, False)) in peers.out


@pytest.mark.parametrize("echo", [m.Echo(1, 3, True), m.Echo(9, 0, True)])
def test_an_echo_that_nobody_waits_for_says_nothing(echo: m.Echo) -> None:
    links = LinkProbes()
    assert links.meet(0, 1, 0.0) is not None
    assert links.echoed(0, echo, 1.0) is None
    links.forget(1)
    assert links.echoed(0, m.Echo(1, 0, True), 1.0) is None


def test_the_slowest_link_counts_and_only_if_all_unpack() -> None:
    links = LinkProbes()
    links.measured |= {1: LinkSpeed(1e6, 0.0, True), 2: LinkSpeed(1e9, 0.0, True), 3: LinkSpeed(1e3, 0.0, False)}
    assert links.slowest([1, 2]) == 1e6
    assert links.slowest([2]) == 1e9
    assert links.slowest([2, 3]) is None
    assert links.slowest([2, 4]) is None
    assert links.slowest([]) is None


# packing


ZEROS = memoryview(bytes(10 * SAMPLE_BYTES))
NOISE = memoryview(np.random.default_rng(0).bytes(10 * SAMPLE_BYTES))


def test_what_saves_no_time_is_sent_as_it_is() -> None:
    """Noise at any speed, and zeros where the link is faster than the compressor; only a sample was tried."""
    for data, bandwidth in [(NOISE, 1.0), (ZEROS, 1e9)]:
        clock = Clock(1e8)
        assert Packer(clock.pack, unpack, clock).packed(data, bandwidth) is None
        assert clock.packed == [SAMPLE_BYTES]


def test_the_turn_is_where_packing_takes_as_long_as_it_saves() -> None:
    saved = SAMPLE_BYTES - len(zlib.compress(ZEROS[:SAMPLE_BYTES], 1))
    even = saved / (ROUND_TRIP_FACTOR * SAMPLE_BYTES / 1e8)
    clock = Clock(1e8)
    tried = Packer(clock.pack, unpack, clock)
    assert tried.packed(ZEROS, even * 1.01) is None
    packed = tried.packed(ZEROS, even * 0.99)
    assert packed is not None
    assert tried.unpacked(packed, len(ZEROS)) == bytes(ZEROS)


def test_a_sample_of_the_middle_decides() -> None:
    """Padding at both ends does not make the rest any smaller."""
    clock = Clock(1e8)
    data = memoryview(bytes(SAMPLE_BYTES) + bytes(NOISE) + bytes(SAMPLE_BYTES))
    assert Packer(clock.pack, unpack, clock).packed(data, 1.0) is None
    assert clock.packed == [SAMPLE_BYTES]


def test_small_pieces_are_left_alone() -> None:
    clock = Clock(1e8)
    tried = Packer(clock.pack, unpack, clock)
    assert tried.packed(ZEROS[: MIN_COMPRESSED_BYTES - 1], 1.0) is None
    assert clock.packed == []
    assert tried.packed(ZEROS[:MIN_COMPRESSED_BYTES], 1.0) is not None


@pytest.fixture
def lz4() -> Packer:
    found = packer()
    if found is None:
        pytest.skip("LZ4 is not installed")
    return found


def test_lz4_gives_back_what_it_was_given(lz4: Packer) -> None:
    for array in (np.zeros(100_000, np.float32), np.arange(100_000), np.eye(300, dtype=np.float16)):
        data = array.reshape(-1).view(np.uint8).data
        packed = lz4.packed(data, 1.0)
        assert packed is not None
        assert len(packed) < array.nbytes
        assert lz4.unpacked(packed, array.nbytes) == array.tobytes()


@given(st.binary(max_size=300), st.integers(0, 300))
def test_bytes_that_are_not_lz4s_are_refused(data: bytes, nbytes: int) -> None:
    """Nothing but so many bytes comes out, and no error but GT's own."""
    found = packer()
    if found is None:
        pytest.skip("LZ4 is not installed")
    try:
        assert len(found.unpacked(data, nbytes)) == nbytes
    except ProtocolError:
        pass


def test_a_large_probe_is_large() -> None:
    """It is the bytes on the wire that are measured."""
    links = LinkProbes()
    probe = links.meet(0, 1, 0.0)
    sizes = []
    while isinstance(probe, m.Probe):
        sizes.append(len(probe.data))
        probe = links.echoed(0, m.Echo(1, probe.probe, True), 1.0)  # type: ignore[assignment]
    assert sizes == [0] * PROBES_PER_SIZE + [LARGE_PROBE_BYTES] * PROBES_PER_SIZE
