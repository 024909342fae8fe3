"""Memory that a worker has mapped and does not use is given up, whatever else the worker does."""

from __future__ import annotations

import numpy as np
from simulation.network import Link
from simulation.service import ADDRESS, simulated

import gt
from gt.wire.shared_memory.lending import IDLE_MAP_SECONDS


def test_memory_of_a_client_is_unmapped_although_messages_come_all_the_time() -> None:
    """The session puts something large once, and is busy with small things from then on."""
    mapped: list[int] = []
    with simulated(1) as service:
        service.shared_bytes = 64 << 20
        service.start_dispatcher(1)
        service.start_worker("worker0", Link(0.001))

        def maps() -> int:
            return len(service.worker_shells["worker0"].large.streams.borrower.maps)

        def program() -> None:
            gt.connect(ADDRESS)
            large = gt.from_numpy(np.ones((300, 700), np.float32))
            assert large.sum().item() == 210_000
            mapped.append(maps())
            del large
            until = service.scheduler.now + 3 * IDLE_MAP_SECONDS
            while service.scheduler.now < until:
                assert gt.ones(3).sum().item() == 3
                service.scheduler.wait([], 0.4)
            mapped.append(maps())
            gt.disconnect()

        service.start_program("program0", Link(0.001), program)
        service.scheduler.run(100.0, lambda: service.programs["program0"].dead)
        assert not service.scheduler.failures
    assert mapped == [1, 0]
