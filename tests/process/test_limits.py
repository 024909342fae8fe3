"""An operator's limits at a running service: a file that changes, and a session that waits in the queue."""

from __future__ import annotations

import sys

import pytest
from daemons import Machine

import gt

pytestmark = [pytest.mark.process, pytest.mark.fresh]


def test_a_session_waits_until_another_has_ended_or_the_file_grants_more(machine: Machine) -> None:
    """Whoever waits is told once, and gives up when it was told to; the file is read again without a restart."""
    path = machine.temp / "limits.yaml"
    path.write_text("default: {sessions: 1}")
    address = f"ipc://{machine.temp}/here"
    dispatcher = machine.start(
        "a dispatcher",
        [
            sys.executable,
            "-P",
            "-m",
            "gt.dispatcher",
            "--address",
            address,
            "--limits",
            str(path),
            "--log-level",
            "info",
        ],
    )
    dispatcher.expect("listening")
    machine.worker(address).expect(" on cpu")
    code = f"""
gt.connect({address!r})
say("value", float((gt.ones(3) * 2).sum()))
hear()
gt.disconnect()
"""
    gt.connect(address)
    try:
        first = machine.program(code)
        assert "number 1 in the queue" in first.expect("this session is")
        asks = machine.command("why", "--decision", "all", address)
        asks.expect("waits for nothing at the dispatcher")
        asks.expect("is number 1 in the queue")
        assert asks.wait() == 0
        impatient = machine.program(f"""
try:
    gt.connect({address!r}, timeout=0.1)
except gt.ConnectionFailed as error:
    say(error)
""")
        assert "still number 2 in the queue" in impatient.expect("this session is still")
    finally:
        gt.disconnect()
    first.expect("value 6.0")
    second = machine.program(code)
    second.expect("number 1 in the queue")
    path.write_text("default: {sessions: 20}")
    second.expect("value 6.0")
    for program in (first, second):
        program.say()
        assert program.wait() == 0
    path.unlink()
