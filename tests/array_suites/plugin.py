"""Gives GT's namespace to the array API tests of SciPy and scikit-learn, as one more of the namespaces that they try.

Both have a fixed list of namespaces: SciPy's is the parameters of the fixture `xp` of its `conftest`, scikit-learn's is what
`yield_namespaces` and its kin yield. Loaded by `-p array_suites.plugin`, before either.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import array_api_strict
import pytest

import gt

NAME: Final = "gt.array_api"
PEER: Final = "array_api_strict"
OUTCOMES: Final = "GT_ARRAY_SUITE_OUTCOMES"
"""The environment variable that names the file of outcomes."""
EVERY: Final = "GT_ARRAY_SUITE_EVERY"
"""The environment variable that says of how many tests one is run."""

DEVICES: Final = {f"{PEER}-CPU_DEVICE-": f"{NAME}-None-", f"{PEER}-device1-": f"{NAME}-None-"}
"""scikit-learn's parameters for its peer, and those for GT, which has one device."""

outcomes: dict[str, list[str]] = {}


def twin(identity: str) -> str:
    """The test of GT's namespace that is the same as this one of its peer."""
    for theirs, ours in DEVICES.items():
        identity = identity.replace(theirs, ours)
    return identity.replace(PEER, NAME)


def pytest_configure(config: pytest.Config) -> None:
    """Start a session without processes, by the standard's conventions, and name the namespace to scikit-learn."""
    gt.connect("inproc")
    gt.set_conventions("array_api")
    gt.set_default_dtype(gt.float64)  # as SciPy has PyTorch default to it
    import sklearn.utils._array_api as theirs

    for name in ("yield_namespaces", "yield_namespace_device_dtype_combinations"):
        setattr(theirs, name, _with_gt(getattr(theirs, name)))


def _with_gt(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(function)
    def both(*args: Any, **options: Any) -> Iterator[Any]:
        for each in function(*args, **options):
            if each == PEER:
                yield NAME
            elif each[0] == PEER:
                yield NAME, None, each[2]
            if PEER in (each, each[0]):
                yield each

    return both


def pytest_plugin_registered(plugin: Any) -> None:
    """Add the namespace to SciPy's fixture, before pytest reads it."""
    if getattr(plugin, "__name__", None) == "scipy.conftest":
        plugin.xp_known_backends.add(gt.array_api.__name__)
        spaces = [pytest.param(array_api_strict, id=PEER), pytest.param(gt.array_api, id=NAME)]
        plugin.xp = pytest.fixture(params=spaces)(plugin.xp.__wrapped__)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of GT's namespace, and of its peer those that have one."""
    every = int(os.environ.get(EVERY, "1"))
    ours = {item.nodeid for item in items if NAME in item.nodeid and not zlib.crc32(item.nodeid.encode()) % every}
    kept = [item for item in items if item.nodeid in ours or (PEER in item.nodeid and twin(item.nodeid) in ours)]
    left = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test went: the worst of its parts."""
    if report.when == "call" or report.outcome != "passed":
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if outcomes.get(report.nodeid, ["passed"])[0] == "passed":
            outcomes[report.nodeid] = [outcome, _reason(report)]


def _reason(report: pytest.TestReport) -> str:
    """What a failure says, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(crash.message.split()) if crash is not None else ""


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    if path := os.environ.get(OUTCOMES):
        Path(path).write_text(json.dumps(outcomes), encoding="utf-8")
