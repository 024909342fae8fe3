"""The processes of peers on this machine: that they have ended is noticed at once, and what workers were computing is known."""

from __future__ import annotations

import logging
import mmap
import os
import select
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from gt.daemon.siblings import kill_sibling
from gt.wire.shared_memory.running_plan import RunningPlan, map_running_plan, read_running_plan

log = logging.getLogger("gt.dispatcher")
MAX_WATCHED_PROCESSES: Final = 4096
"""Each takes a file descriptor."""


class PeerProcesses:
    """Watches processes by file descriptors that become readable when they end."""

    def __init__(self) -> None:
        self.peers: dict[int, bytes] = {}
        """By descriptor, the peer."""
        self.pids: dict[int, int] = {}
        """By descriptor, the id of the process."""
        self.running_plans: dict[bytes, mmap.mmap] = {}
        """By worker, the memory in which it tells what it is computing."""
        self.ends = select.epoll()
        """An epoll object over all of these descriptors, so that one turn of the loop costs the same with any number of peers."""

    def watch(self, peer: bytes, pid: int) -> bool:
        """Watch for the end of a peer's process, unless `pid` is 0. Returns whether that is possible. Raises `ProcessLookupError`
        if it has ended."""
        if pid <= 0 or len(self.peers) >= MAX_WATCHED_PROCESSES:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except (ProcessLookupError, FileNotFoundError):  # the second where it ends meanwhile
            raise ProcessLookupError(pid) from None
        except (OSError, OverflowError):
            log.debug("process %d cannot be watched", pid)
            return False
        self.peers[descriptor], self.pids[descriptor] = peer, pid
        self.ends.register(descriptor, select.EPOLLIN)
        return True

    def ended(self) -> Iterator[bytes]:
        """The peers whose processes have ended since, which are not watched any more."""
        for descriptor, _ in self.ends.poll(0):
            yield self._unwatch(descriptor)

    def keep(self, known: Callable[[bytes], bool]) -> None:
        """Watch no peers any more but those that are known."""
        for descriptor in [each for each, peer in self.peers.items() if not known(peer)]:
            self._unwatch(descriptor)

    def kill(self, silent: Collection[bytes]) -> None:
        """Kill the workers among these peers that were started together with this process."""
        for descriptor in [each for each, peer in self.peers.items() if peer in silent]:
            if kill_sibling(self.pids[descriptor], descriptor):
                log.warning("worker process %d was silent for too long, and was killed", self.pids[descriptor])

    def _unwatch(self, descriptor: int) -> bytes:
        """Stop watching a process. Returns its peer."""
        self.ends.unregister(descriptor)
        os.close(descriptor)
        del self.pids[descriptor]
        return self.peers.pop(descriptor)

    def hear_running_plan(self, worker: bytes, where: Any) -> None:
        """Learn where a worker tells what it is computing, if it does and that is on this machine."""
        memory = map_running_plan(where)
        if memory is not None:
            self.running_plans[worker] = memory

    def running_plan(self, worker: bytes) -> RunningPlan | None:
        """The plan that a worker is computing, or was when it ended."""
        memory = self.running_plans.get(worker)
        return None if memory is None else read_running_plan(memory)

    def keep_running_plans(self, workers: Collection[bytes]) -> None:
        """Forget what all but these workers were computing."""
        for worker in [each for each in self.running_plans if each not in workers]:
            self.running_plans.pop(worker).close()
