"""Another config while clients are at work, over real sockets: from the program itself, and by a signal to the dispatcher."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemons import TIMEOUT, Machine

import gt

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def test_a_program_shards_anew_while_it_trains(machine: Machine) -> None:
    """The mesh changes from two workers to three and back; what was put, computed and is on its way is all there."""
    address, _, _ = machine.service(3)
    gt.connect(address, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    large = np.random.default_rng(0).normal(size=(700, 301))
    with gt.signal.context("net"):
        x = gt.tensor(large)
        total = gt.zeros(700, 301, dtype="float64")
        for step in range(40):
            total = total + x * step
            if step == 10:
                gt.load_config({"mesh": {"model": 3}, "sharding_config": {"net": {"strategy": "auto"}}})
            if step == 20:
                early = total.fetch()
                gt.load_config({"mesh": {"data": 1, "model": 2}})
                assert np.allclose(early.result(), large * sum(range(21)))
    assert np.allclose(total.numpy(), large * sum(range(40)))


def test_sighup_has_the_dispatcher_read_its_config_again(machine: Machine, tmp_path: Path) -> None:
    """It holds for sessions that run and for new ones; a wrong file is logged and changes nothing."""
    path = tmp_path / "service.yaml"
    path.write_text("sharding_config: {net: {strategy: data_parallel}}\n")
    address, dispatcher, _ = machine.service(2, "--config", str(path))
    gt.connect(address)
    with gt.signal.context("net"):
        x = gt.tensor(np.arange(12.0).reshape(4, 3))
    y = x @ x.t()

    path.write_text("sharding_config: {net: {strategy: data_paralel}}\n")
    dispatcher.signal(signal.SIGHUP)
    line = dispatcher.expect("the config stays as it was")
    assert (
        f"{path}:1: sharding_config.net.strategy: 'data_paralel' is not a strategy, did you mean data_parallel?" in line
    )
    assert np.array_equal(y.numpy(), np.arange(12.0).reshape(4, 3) @ np.arange(12.0).reshape(4, 3).T)

    path.write_text("mesh: {model: 2}\nsharding_config: {net: {strategy: tensor_parallel}}\n")
    dispatcher.signal(signal.SIGHUP)
    dispatcher.expect("again")
    assert np.array_equal((y + 1).numpy(), np.arange(12.0).reshape(4, 3) @ np.arange(12.0).reshape(4, 3).T + 1)
    gt.disconnect()
    session = gt.connect(address, config={"sharding_config": {"more": {"strategy": "replicate"}}})
    assert session.facts["mesh"] == {"model": 2}


def test_sighup_before_it_is_up_ends_no_dispatcher(machine: Machine, tmp_path: Path) -> None:
    """Whoever sends it cannot know when that is: the config is read again as soon as there is somebody to follow it."""
    path = tmp_path / "service.yaml"
    os.mkfifo(path)
    options = ["--address", "tcp://127.0.0.1:*", "--config", str(path), "--log-level", "info"]
    dispatcher = machine.command("dispatcher", *options)
    with path.open("w") as pipe:  # it is open once the dispatcher reads its config: it starts, and is not up
        dispatcher.signal(signal.SIGHUP)
        pipe.write("sharding_config: {net: {strategy: data_parallel}}\n")
    dispatcher.expect("listening at")
    with path.open("w") as pipe:
        pipe.write("sharding_config: {net: {strategy: replicate}}\n")
    dispatcher.expect(f"read {path} again")
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0


def blocks_sighup(pid: int) -> bool:
    """Whether a process puts SIGHUP off."""
    mask = re.search(r"^SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (signal.SIGHUP - 1) & 1)


def test_sighup_while_its_modules_load_ends_no_dispatcher(machine: Machine) -> None:
    """It waits from the command's first lines on, before anything is imported, and is followed then."""
    dispatcher = machine.command("dispatcher", "--address", "tcp://127.0.0.1:*", "--log-level", "info")
    deadline = time.monotonic() + TIMEOUT
    while not blocks_sighup(dispatcher.pid):
        assert dispatcher.running()
        assert time.monotonic() < deadline, "it never puts it off"
    dispatcher.signal(signal.SIGHUP)
    dispatcher.expect("there is no config to read again")
    assert not blocks_sighup(dispatcher.pid)


def test_sighup_as_soon_as_it_is_started_ends_no_dispatcher_of_a_program(machine: Machine) -> None:
    """Whoever starts a dispatcher blocks it before: the very first moment is too late for none."""
    program = machine.program("""
        from gt.service.launch import Local
        local = Local(1)
        os.kill(local.children[0][1].pid, signal.SIGHUP)
        gt.connect(local.address)
        say("sum", float(gt.ones(3).sum()))
        gt.disconnect()
        local.close()
    """)
    assert program.expect("sum") == "sum 3.0"
    assert program.wait() == 0


def test_sighup_without_a_config_is_said_to_be_for_nothing(machine: Machine) -> None:
    _, dispatcher, _ = machine.service(1)
    dispatcher.signal(signal.SIGHUP)
    dispatcher.expect("there is no config to read again")
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0
