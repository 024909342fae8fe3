"""An operator's orders over real sockets: a session is paused, goes on and is ended, the config is read again; all recorded."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from daemons import Machine

from gt.errors import SessionError
from gt.monitor.stream import Stream
from gt.wire import telemetry as t

pytestmark = pytest.mark.process


def test_a_session_is_paused_resumed_and_ended(machine: Machine, tmp_path: Path) -> None:
    """The program waits for its value without an error, and hears why; in the end it gets an error that says who ended it."""
    config, accounts = tmp_path / "service.yaml", tmp_path / "accounts"
    config.write_text("sharding_config: {net: {strategy: data_parallel}}\n")
    address, dispatcher, _ = machine.service(1, "--config", str(config), "--accounts", str(accounts))
    program = machine.program(
        f"""
        gt.connect({address!r})
        x = gt.ones(3)
        say(x.sum().item())
        assert set(gt.usage()[""]) > {{"device_seconds", "joules"}}
        hear()
        say((x + 1).sum().item())
        try:
            while True:
                x.sum().item()
        except gt.SessionError as error:
            say("told:", error)
        """
    )
    program.expect("3.0")
    with Stream(address, level=t.OFF) as stream:
        assert stream.control_session(1, "pause")["paused"] is True
        program.say()
        program.expect("an operator has paused this session")
        assert stream.control_session(1, "weight", "2")["weight"] == 2.0
        stream.control_session(1, "resume")
        program.expect("an operator lets this session go on")
        program.expect("6.0")
        stream.reload()
        config.write_text("sharding_config: {net: {strategy: none_such}}\n")
        with pytest.raises(Exception, match="none_such"):
            stream.reload()
        ordered = machine.command("session", "end", "1", address)
        ordered.expect("client 1 is ended")
        assert ordered.wait() == 0
        program.expect("told: the service ended the session: an operator has ended this session")
        assert program.wait() == 0
        with pytest.raises(SessionError, match="not there"):
            stream.control_session(1, "pause")
        machine.command("usage", address, "--csv").expect("principal,signal,device_seconds")
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0
    head, *lines = (accounts / "usage.csv").read_text().splitlines()
    assert all(len(line.split(",")) == len(head.split(",")) for line in lines)
    (line,) = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    assert int(line["runs"]) >= 2
    assert float(line["device_seconds"]) > 0
    assert line["joules"] == "", "no device tells its power"
    told = [json.loads(line) for line in (accounts / "audit.jsonl").read_text().splitlines()]
    assert [(each["action"], each["outcome"]) for each in told] == [
        ("pause", "done"), ("weight", "done"), ("resume", "done"), ("reload", "done"), ("reload", "failed"), ("end", "done"),
        ("pause", "failed"),
    ]  # fmt: skip
    assert {each["who"] for each in told} == {told[0]["who"]}
