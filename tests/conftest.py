"""What holds for all tests: how many cases are drawn, processes and in which company they run, and what was proved."""

from __future__ import annotations

import faulthandler
import gc
import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from daemons import Machine
from effort import EFFORT, PROVED, cases
from fork_server import server_settings
from hypothesis import settings

MAX_SECONDS = 300 * max(1.0, EFFORT)
"""A test that takes longer hangs: all stacks are written, its process ends, and pytest-xdist goes on without it."""
STDERR = pytest.StashKey[int]()

settings.register_profile("gt", deadline=None, max_examples=cases(50), print_blob=True)
settings.load_profile("gt")


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Processes, of which nothing may be left afterwards. This process finds their services and keys where they do."""
    made = Machine()
    made.fresh = request.node.get_closest_marker("fresh") is not None
    for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, made.environment[name])
    try:
        yield made
        made.close()
        assert made.left() == []
    finally:
        made.close()
        made.remove()


@pytest.fixture(params=("late", "kernels", "copies") if "PRETEND_DEVICES" in os.environ else ("late",))
def in_any_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pretend device does at once: nothing, kernels, or copies. What is not ordered comes out wrong in one of them."""
    monkeypatch.setenv("PRETEND_ORDER", request.param)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: who tests processes mostly waits for them."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config: pytest.Config) -> None:
    """No test uses this user's snapshots. Where stacks of a test that hangs go: to where its output does not. And nobody
    looks for garbage while modules are loaded and tests gathered, which took a fifth of that."""
    gc.disable()
    folder = tempfile.TemporaryDirectory(prefix="gt-test-snapshots-")
    config.add_cleanup(folder.cleanup)
    os.environ["GT_SNAPSHOTS"] = folder.name
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No test hangs for ever."""
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make prove` tries at length; and have tests of processes come first, in one runner, beside the rest.

    A test is drawn if Hypothesis or its module says how often.
    """
    for item in items:
        assert isinstance(item, pytest.Function), "all tests are functions"
        if {"cases", "thinned", "EFFORT"} & vars(item.module).keys() or is_drawn(item):
            item.add_marker(pytest.mark.drawn)
    items.sort(key=lambda item: item.get_closest_marker("process") is None)


def is_drawn(item: pytest.Function) -> bool:
    """Whether Hypothesis draws a test's arguments."""
    return bool(getattr(item.function, "is_hypothesis_test", False))


def pytest_collection_finish() -> None:
    """What modules hold, PyTorch's samples above all, stays: no garbage collection need walk it again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    server_settings()  # which are those of no test


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist ends: what it proved counts here."""
    PROVED.update(Counter(getattr(node, "workeroutput", {}).get("proved", {})))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process of pytest-xdist: say what was proved to whoever started it."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["proved"] = dict(PROVED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was proved, case by case."""
    if PROVED:
        terminalreporter.section("proved", sep="-")
        for kind, count in sorted(PROVED.items()):
            terminalreporter.write_line(f"{count:9,} {kind}")
        terminalreporter.write_line(f"{PROVED.total():9,} cases in all, at effort {EFFORT:g}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--draw-pictures` draws the pictures of the monitor anew, for somebody to look at."""
    parser.addoption("--draw-pictures", action="store_true", help="draw tests/monitor/pictures anew")
