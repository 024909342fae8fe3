"""Peers that are cut off, or end, in the moment in which they join."""

from __future__ import annotations

import pytest
from simulation.network import Link
from simulation.service import ADDRESS, LEASE_SECONDS, Service, simulated

import gt
from gt.daemon.host import CONNECT_TIMEOUT
from gt.errors import ConnectionFailed

FAST = Link(0.001)


def joined(service: Service) -> list[int]:
    """The numbers of the workers that the dispatcher knows."""
    if service.dispatcher_shell is None:
        return []
    return [worker.number for worker in service.dispatcher_shell.core.service.workers.values()]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("messages", [1, 2, 3])
def test_a_worker_that_is_cut_off_while_it_joins_goes_on(messages: int, silent: bool) -> None:
    """For longer than it waits for a dispatcher that never answers; what differs is what the worker has heard before."""
    with simulated(1) as service:
        service.start_dispatcher(1)
        service.start_worker("remote-worker", Link(0.001))
        process = service.workers["remote-worker"]
        assert service.scheduler.run(5.0, lambda: joined(service) == [0])
        before = service.network.delivered
        service.scheduler.run(5.0, lambda: service.network.delivered >= before + messages)
        service.network.cut("remote-worker", 3 * CONNECT_TIMEOUT, silent=silent)
        service.scheduler.run(service.scheduler.now + LEASE_SECONDS)
        assert not service.scheduler.failures
        assert joined(service) == [0], "it is the same worker"
        assert service.workers["remote-worker"] is process, "in the same process"
        assert service.worker_shells["remote-worker"].bulk.accepted


def test_a_worker_that_reaches_one_of_the_two_addresses_ends() -> None:
    with simulated(1) as service:
        service.start_dispatcher(1)
        service.scheduler.run(1.0)
        del service.network.listening[f"{ADDRESS}-bulk"]
        service.start_worker("worker", FAST)
        process = service.workers["worker"]
        service.scheduler.run(1.0 + CONNECT_TIMEOUT)
        assert joined(service) == [0]
        assert service.scheduler.run(3.0 + CONNECT_TIMEOUT, lambda: process.dead)
        service.scheduler.run(service.scheduler.now + 0.5)
        assert joined(service) == []


def test_a_connect_that_fails_leaves_no_session_behind() -> None:
    """The dispatcher answers, and large data cannot be sent."""
    with simulated(1) as service:
        service.start_dispatcher(1)
        service.scheduler.run(1.0)
        del service.network.listening[f"{ADDRESS}-bulk"]
        errors: list[Exception] = []

        def program() -> None:
            try:
                gt.connect(ADDRESS)
            except ConnectionFailed as error:
                errors.append(error)
            service.scheduler.wait([], 2 * LEASE_SECONDS)  # it goes on

        service.start_program("program", FAST, program)
        assert service.scheduler.run(10.0, lambda: bool(errors))
        service.scheduler.run(service.scheduler.now + 1.0)
        assert not service.dispatcher_shell.core.service.clients


def test_a_worker_that_has_ended_before_its_hello_is_read_is_lost_at_once() -> None:
    with simulated(1) as service:
        service.start_dispatcher(1)
        service.scheduler.run(0.5)
        assert service.dispatcher is not None
        service.dispatcher.freeze(3.0)
        service.start_worker("worker", FAST)
        service.scheduler.run(2.0)
        service.restart_worker("worker", 0.0)
        service.scheduler.run(5.0)
        assert joined(service) == [1], "the second one"
