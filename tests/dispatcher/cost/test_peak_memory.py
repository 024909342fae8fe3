"""What plans take of memory, and that what cannot fit is refused before anything of it runs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import PROVED, cases
from law.__main__ import case, judged, network_case
from law.running import Discarded

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import CONNECT_TIMEOUT
from gt.dispatcher.cost.cost_model import devices_of
from gt.dispatcher.cost.peak_memory import largest_part, local_bytes, peak_at_most, peak_by_rank
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planned, Planner
from gt.ir.dtypes import float32
from gt.ir.instruction import Segment
from gt.ir.spec import spec
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import load
from gt.sharding.placement import parse_layout, uniform_mesh

GRID = uniform_mesh(1, {"a": 2, "b": 3}, tuple(range(6)))


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    gt.disconnect()


@pytest.mark.parametrize("layout", ["R|R", "S0|R", "R|S1", "S0|S1", "S1|S1", "S0(1,0)|R", "P(sum)|S0", "R|S0(5,1,1)"])
@pytest.mark.parametrize("shape", [(6, 12), (7, 5), (1, 1), (0, 3)])
def test_no_rank_holds_more_than_the_largest_part(layout: str, shape: tuple[int, ...]) -> None:
    value, at = spec(float32, shape), parse_layout(layout)
    parts = local_bytes(value, at, GRID)
    assert parts.max() <= largest_part(value, at, GRID)
    if layout != "S1|S1" or shape == (6, 12):
        assert parts.max() == largest_part(value, at, GRID)


def test_no_rank_of_any_plan_holds_more_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick figure is never below the exact one, for plans of drawn programs and pipelines."""
    usual, checked = Planner.plan_in_turns, []

    def plan(
        self: Planner, segment: Segment, residents: tuple[ResidentPlacement, ...]
    ) -> Generator[None, None, Planned]:
        found = yield from usual(self, segment, residents)
        assert peak_at_most(found.plan, self.mesh) >= peak_by_rank(found.plan, self.mesh).max()
        PROVED["plans whose memory no worker exceeds"] += 1
        checked.append(segment)
        return found

    monkeypatch.setattr(Planner, "plan_in_turns", plan)
    for seed in range(cases(4)):
        for subject, places in (case(seed), network_case(seed)):
            try:
                list(judged(subject, places))
            except Discarded:
                pass
    assert checked


def test_a_host_is_shared_by_workers_without_memory_of_their_own() -> None:
    facts: list[dict[str, Any]] = [
        {"kind": "cpu", "host": "a", "host_memory": 100},
        {"kind": "cpu", "host": "a", "host_memory": 100},
        {"kind": "cuda", "host": "a", "memory": 70},
        {"kind": "cpu", "host": "b", "host_memory": 90},
        {"kind": "cpu", "host": "c", "host_memory": "much"},
    ]
    assert [device.capacity for device in devices_of(facts)] == [50, 50, 70, 90, 0]
    assert [device.pool for device in devices_of(facts)] == [0, 0, -1, 1, 2]


def connect(memory: int, config: Path | None = None) -> Fabric:
    """A session on two workers of so much memory."""
    fabric = Fabric(2, load(config) if config else None, facts=[{"kind": "cpu", "host": "one", "memory": memory}] * 2)
    session = Session(InprocLink(fabric), "small", idle_flush=False)
    session.open({"bulk": b""}, CONNECT_TIMEOUT)
    sessions.adopt(session)
    return fabric


def test_what_cannot_fit_is_refused_by_its_rule_and_the_session_goes_on(tmp_path: Path) -> None:
    """Nothing of it runs; what is cut fits, and so does what comes after something was freed."""
    path = tmp_path / "small.yaml"
    path.write_text("sharding_config:\n  whole:\n    strategy: replicate\n  cut:\n    strategy: data_parallel\n")
    fabric = connect(10_000, path)
    x = gt.from_numpy(np.ones((20, 30), np.float32))  # 2,400 bytes
    with gt.signal.context("whole"):
        wide = gt.cat([x, x, x, x, x])
    with pytest.raises(
        gt.OutOfMemory, match=r"would hold 14,400 bytes of 10,000; .* f32\[100,30\] of cat in signal whole"
    ):
        wide.numpy()
    with pytest.raises(gt.OutOfMemory, match=r"with the rule at .*small.yaml:2"):
        wide.numpy()
    del wide
    with gt.signal.context("cut"):
        cut = gt.randn(60, 30).relu()
    assert cut.shape == cut.numpy().shape
    del cut
    held = [gt.zeros(20, 30) for _ in range(2)]
    gt.synchronize()
    with pytest.raises(gt.OutOfMemory, match=r"in no signal .* for which there is no rule"):
        gt.zeros(40, 30).numpy()
    del held
    assert gt.zeros(40, 30).numpy().sum() == 0
    gt.synchronize()
    fabric.dispatcher.check()


def test_a_value_too_large_for_all_workers_costs_only_what_depends_on_it() -> None:
    """Such a value is an error of its own and of what depends on it; what else its segment makes, before and after, has a
    value."""
    fabric = connect(10_000)
    for _ in range(5):  # so often that a plan is hot
        before = gt.ones(3) * 2
        large, larger = gt.zeros(1 << 40), gt.full((1 << 41,), 2.0)
        view = gt.full((), 3.0).expand(1 << 45)  # takes nothing
        either = larger[:3] + large[:3]
        after = before + view[:3]
        with pytest.raises(
            gt.OutOfMemory, match=r"the result f32\[1099511627776\] of full in no signal .* takes 4,398,"
        ):
            (large + 1)[:3].numpy()
        with pytest.raises(gt.OutOfMemory, match=r"f32\[2199023255552\].*together have 10,000: use more workers"):
            larger[:3].numpy()
        with pytest.raises(gt.OutOfMemory, match=r"f32\[1099511627776\]"):  # the first on which it depends
            either.numpy()
        assert before.tolist() == [2, 2, 2]
        assert after.tolist() == [5, 5, 5]
        assert (before + 1).tolist() == [3, 3, 3]
        del large, larger, either
    gt.synchronize()
    fabric.dispatcher.check()


def test_what_dies_with_a_run_is_free_after_its_last_reader() -> None:
    """A chain holds two values at a time, and so fits where two fit."""
    fabric = connect(9_000)
    x = gt.ones(1_000)  # 4,000 bytes
    gt.synchronize()
    for _ in range(10):
        x = x * 2
    assert x.sum().item() == 1_024_000
    y = x + 1  # here it does not die
    gt.synchronize()
    with pytest.raises(gt.OutOfMemory, match=r"would hold 12,000 bytes"):
        (y * 2).numpy()
    assert x.shape == y.shape
    fabric.dispatcher.check()


def test_views_take_nothing_between_plans_either() -> None:
    """Nor does what is expanded from something that is gone; and what is freed counts no more."""
    fabric = connect(9_000)
    x = gt.ones(1_000)
    gt.synchronize()
    views = [x.reshape(10, 100), x.reshape(20, 50).T, x[:600]]
    gt.synchronize()
    assert (x[:3] + views[0][0, :3] + views[2][:3]).sum().item() == 9
    del x
    huge = gt.ones(1).expand(100, 1_000)
    gt.synchronize()
    assert (huge[0] + views[0].reshape(1_000)).sum().item() == 2_000
    with pytest.raises(gt.OutOfMemory, match=r"would hold 16,004 bytes"):  # the views keep all of it
        (gt.ones(1_000) + gt.ones(1_000).exp()).numpy()
    del views
    assert gt.ones(2_000).sum().item() == 2_000
    fabric.dispatcher.check()


def test_what_piles_up_by_one_plan_is_refused_too() -> None:
    """Not at the very run, but long before there is twice as much as fits."""
    connect(100_000)
    kept = [gt.ones(1_000)]

    def grow() -> None:
        for _ in range(50):
            kept.append(kept[-1] + 1)
            gt.synchronize()
            kept[-1].numpy()

    with pytest.raises(gt.OutOfMemory, match=r"would hold .* bytes of 100,000"):
        grow()
    assert 20 < len(kept) < 50
    del kept[1:]
    assert (kept[0] + 1).sum().item() == 2_000


def test_one_worker_may_have_what_the_others_of_its_host_leave() -> None:
    """All of it on one of two workers fits into their host's memory, though not into that one's half."""
    config = gt.Config.from_plain(
        {"sharding_config": {"alone": {"shard": {"axis": 0, "workers": [0]}}}, "mesh": {"w": 2}}
    )
    fabric = Fabric(2, config, facts=[{"kind": "cpu", "host": "one", "host_memory": 20_000}] * 2)
    session = Session(InprocLink(fabric), "shared", idle_flush=False)
    session.open({"bulk": b""}, CONNECT_TIMEOUT)
    sessions.adopt(session)
    with gt.signal.context("alone"):
        x = gt.randn(2_000) * 2.0
    assert np.isfinite(x.numpy()).all()
    with (
        gt.signal.context("alone"),
        pytest.raises(gt.OutOfMemory, match="all workers of its mesh together have 20,000"),
    ):
        gt.randn(6_000).numpy()
