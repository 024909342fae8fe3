"""Which connections are ended because of messages that do not end."""

from __future__ import annotations

import math

import pytest

from gt.wire.unfinished_messages import CONFIRM_SECONDS, LAST_RESORT, SUSPICION_SECONDS, Reading, UnfinishedMessages

BOUND = 100
LARGEST = 20
"""The bytes of the largest message, where they are counted."""
LOOK = 0.05


class Memory:
    """A process whose memory and connections a test decides about. Time passes at looks alone."""

    def __init__(self) -> None:
        self.watch: UnfinishedMessages[str] = UnfinishedMessages(BOUND)
        self.now = 0.0
        self.bytes = 1000
        self.connections: dict[str, tuple[bool, float]] = {}
        """Whether something whole comes by each between two looks, and how many bytes."""
        self.trusted: set[str] = set()
        self.reads = 0
        assert self.look() == []

    def read(self) -> list[Reading[str]]:
        self.reads += 1
        return [Reading(name, *came, LARGEST, name in self.trusted) for name, came in self.connections.items()]

    def look(self, grown: int = 0) -> list[str]:
        """The next look, before which the process has grown."""
        self.now += LOOK
        self.bytes += grown
        ended = self.watch.look(self.now, self.bytes, self.read)
        for name in ended:
            del self.connections[name]
        return ended

    def looks(self, seconds: float, grown: int = 0) -> list[str]:
        """All that is ended within so many seconds, with growth between any two looks."""
        return [name for _ in range(round(seconds / LOOK)) for name in self.look(grown)]


@pytest.fixture
def memory() -> Memory:
    return Memory()


def suspicious(memory: Memory) -> Memory:
    assert memory.look(BOUND + 1) == []
    assert memory.watch.began is not None
    return memory


def test_nothing_is_read_while_memory_is_calm(memory: Memory) -> None:
    """However it goes up and down below the bound, and however much comes."""
    memory.connections = {"a": (False, math.inf)}
    for grown in (BOUND, -BOUND, BOUND, -2 * BOUND, BOUND):
        assert memory.look(grown) == []
    assert memory.reads == 0


@pytest.mark.parametrize("bytes_at_a_look", [LARGEST, math.inf], ids=["counted", "not counted"])
def test_who_sends_bytes_and_nothing_whole_is_ended(memory: Memory, bytes_at_a_look: float) -> None:
    """Not before it was confirmed, and nobody else: neither who is silent nor who finishes messages."""
    memory.connections = {"endless": (False, bytes_at_a_look), "idle": (False, 0), "honest": (True, bytes_at_a_look)}
    suspicious(memory)
    assert memory.looks(CONFIRM_SECONDS) == []
    assert memory.looks(3 * LOOK) == ["endless"]
    assert memory.looks(2 * SUSPICION_SECONDS) == []


def test_a_large_message_on_a_slow_link_is_waited_for(memory: Memory) -> None:
    """Where bytes are counted, a message may take as long as it takes, up to the bytes of the largest one."""
    memory.connections = {"slow": (False, LARGEST / 200)}
    suspicious(memory)
    assert memory.looks(2 * SUSPICION_SECONDS) == []
    assert memory.watch.began is None


def test_tiny_frames_are_found_by_the_growth_that_goes_on(memory: Memory) -> None:
    """They take more memory than they had bytes, so the largest message would be too many of them."""
    memory.connections = {"tiny": (False, 0.1), "idle": (False, 0)}
    suspicious(memory)
    assert memory.looks(1.0, BOUND // 4) == ["tiny"]


def test_messages_that_end_begin_the_count_anew(memory: Memory) -> None:
    """Who finished one during the suspicion is found nevertheless, if the next does not end."""
    memory.connections = {"a": (True, math.inf)}
    suspicious(memory)
    assert memory.looks(1.0) == []
    memory.connections = {"a": (False, math.inf)}
    assert memory.looks(CONFIRM_SECONDS) == []
    assert memory.looks(3 * LOOK) == ["a"]


def test_a_suspicion_ends_when_the_memory_has_returned(memory: Memory) -> None:
    """Nothing is read any more, and the next growth begins another one."""
    memory.connections = {"a": (False, math.inf)}
    suspicious(memory)
    assert memory.look(-BOUND) == []
    reads = memory.reads
    assert memory.looks(1.0) == []
    assert memory.reads == reads
    suspicious(memory)


def test_growth_that_stays_is_the_new_calm(memory: Memory) -> None:
    """A service that holds more than before is suspected once."""
    suspicious(memory)
    assert memory.looks(SUSPICION_SECONDS + LOOK) == []
    reads = memory.reads
    assert memory.looks(2 * SUSPICION_SECONDS) == []
    assert memory.reads == reads


def test_growth_without_a_cause_ends_the_silent(memory: Memory) -> None:
    """Messages that stand still are seen by nothing but silence; who has spoken, who may be silent and who came later stay."""
    memory.connections = {"holds": (False, 0), "holds, too": (False, 0), "honest": (True, 5), "subscriber": (False, 0)}
    memory.trusted = {"subscriber"}
    ended = []
    for _ in range(LAST_RESORT):
        assert ended == []
        suspicious(memory)
        memory.connections["late"] = (False, 0)
        ended = memory.looks(SUSPICION_SECONDS + LOOK)
        del memory.connections["late"]
    assert sorted(ended) == ["holds", "holds, too"]
    assert memory.watch.calm == memory.bytes


def test_memory_that_returned_is_no_growth_without_a_cause(memory: Memory) -> None:
    memory.connections = {"idle": (False, 0)}
    for _ in range(2 * LAST_RESORT):
        suspicious(memory)
        assert memory.looks(SUSPICION_SECONDS + LOOK) == []
        assert memory.look(-BOUND - 1) == []
