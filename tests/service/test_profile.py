"""`gt.profile` where the service is in the program's thread; and while a program is explained, when it does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import gt
from gt.errors import SessionError
from gt.monitor.reading import TraceMetadata, read
from gt.tools.explain import explain_program
from gt.wire import telemetry as t


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_session_in_this_thread_is_recorded(tmp_path: Path, name: str) -> None:
    """The trace has each run, fetch and plan with its line, and its slices add up to the workers' counters."""
    session = gt.connect("inproc", workers=2, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    try:
        with gt.profile(tmp_path / name) as profile:
            with gt.signal.context("net"):
                x = gt.ones(8, 8)
                for _ in range(50):
                    x = x * 0.5 + 1
                    assert x.sum().item() > 0
            runs = gt.stats()["service"]["runs"]
        recorded = TraceMetadata()
        events = list(read(tmp_path / name, recorded))
        assert not recorded.cut
        assert len(events) == profile.events
        assert profile.dropped == 0
        assert sum(event.times for event in events if isinstance(event, t.RunIssued)) == runs
        assert sum(event.times for event in events if isinstance(event, t.Fetched)) == 50
        for worker in (0, 1):
            slices = [event for event in events if isinstance(event, t.PlanSlice) and event.worker == worker]
            *_, counters = (event for event in events if isinstance(event, t.Utilisation) and event.worker == worker)
            assert sum(event.times for event in slices) == counters.plans == runs
            for state in ("compute", "communication", "waiting"):
                assert sum(getattr(event, state) for event in slices) == getattr(counters, state)
            assert counters.idle > 0, "while the program itself, or the other worker, does something"
        sites = {site for event in events if isinstance(event, t.PlanDescribed) for site in event.sites}
        assert any(__file__.rpartition("/")[2] in site for site in sites)
        assert {event.client for event in events if isinstance(event, t.RunIssued)} == {1}
        fabric = session.link.fabric  # type: ignore[attr-defined]
        fabric.check()
        assert all(core.recording is None for core in fabric.workers.values()), "nobody watches any more"
        assert fabric.dispatcher.service.recording is None
        before = fabric.time
        assert x.sum().item() > 0
        assert fabric.time == before, "without a watcher no time passes"
        with gt.profile(tmp_path / "again.json") as again:
            x.sum().item()
        assert again.events > 0
    finally:
        gt.disconnect()


def test_what_ends_within_the_block_is_written_all_the_same(tmp_path: Path) -> None:
    """An error of the block, or the end of its session, leaves a whole trace; two at once are refused."""
    gt.connect("inproc")
    path = tmp_path / "run.json"

    def block() -> None:
        with gt.profile(path):
            gt.ones(3).sum().item()
            with pytest.raises(SessionError, match="one at a time"), gt.profile(tmp_path / "other.json"):
                pytest.fail("the block runs")
            gt.disconnect()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert not (tmp_path / "other.json").exists()
    recorded = TraceMetadata()
    events = list(read(path, recorded))
    assert not recorded.cut
    assert any(isinstance(event, t.Fetched) for event in events)


def test_a_program_that_profiles_itself_can_be_explained(tmp_path: Path) -> None:
    program, path = tmp_path / "program.py", tmp_path / "run.json"
    program.write_text(
        f"import gt\nwith gt.profile({str(path)!r}):\n    x = gt.ones(4, 4) @ gt.ones(4, 4)\n    x.numpy()\n"
    )
    _, found = explain_program(program, workers=2, speeds="typical")
    assert found
    assert not path.exists()
