"""Runs the array API tests of SciPy and scikit-learn with GT's namespace and with `array_api_strict`, and compares."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from .left_out import reason_of
from .plugin import EVERY, NAME, OUTCOMES, PEER, twin

SCIPY: Final = (
    "_lib", "cluster", "constants", "differentiate", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal",
    "spatial", "special", "stats",
)  # fmt: skip
SUITES: Final = (*(f"scipy.{each}" for each in SCIPY), "sklearn")
ENOUGH: Final = 0.99
"""The part of the peer's tests, less those left out, that must pass."""


def folder_of(package: str) -> Path:
    """Where a package is installed."""
    spec = importlib.util.find_spec(package.partition(".")[0])
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*package.split(".")[1:])


def files_of(suite: str) -> list[str]:
    """The files of a suite's tests that try namespaces."""
    words = ("yield_namespace", "_array_api_for_tests") if suite == "sklearn" else ("xp",)
    paths = sorted(folder_of(suite).rglob("test_*.py"))
    return [str(path) for path in paths if any(word in path.read_text(encoding="utf-8") for word in words)]


def outcomes_of(suite: str, every: int, quiet: bool) -> dict[str, list[str]]:
    """How each test of a suite went, in a process of its own."""
    site = folder_of(suite.partition(".")[0]).parent
    with tempfile.TemporaryDirectory() as made:
        settings, found = Path(made, "pytest.ini"), Path(made, "outcomes")
        settings.write_text("[pytest]\n", encoding="utf-8")  # neither ours nor theirs
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "ignore"]
        command += ["-p", "array_suites.plugin", "-c", str(settings), "--rootdir", str(site), "--confcutdir", str(site)]
        wanted = {"SCIPY_ARRAY_API": "1", OUTCOMES: str(found), EVERY: str(every)}
        out = subprocess.DEVNULL if quiet else None
        subprocess.run([*command, *files_of(suite)], env=os.environ | wanted, stdout=out, check=False)
        if not found.exists():
            raise SystemExit(f"{suite}: pytest did not come to an end")
        outcomes: dict[str, list[str]] = json.loads(found.read_text(encoding="utf-8"))
        return outcomes


def compared(suite: str, outcomes: dict[str, list[str]]) -> Counter[str]:
    """Counts what the peer passes: passed here, left out, failed; prints what failed."""
    counts: Counter[str] = Counter()
    for name, (theirs, _) in outcomes.items():
        if PEER not in name or theirs != "passed":
            continue
        mine, message = outcomes.get(twin(name), ["missing", ""])
        if mine == "passed":
            counts["passed"] += 1
        elif reason_of(twin(name), message):
            counts["left out"] += 1
        else:
            counts["failed"] += 1
            print(f"  {suite}: {twin(name).rpartition('/')[2]}: {mine} {message[:140]}")
    return counts


def main() -> int:
    """Run suites and say how each does; the status is 1 if too little passes."""
    parser = argparse.ArgumentParser(description=f"Run array API tests of SciPy and scikit-learn on {NAME} and {PEER}.")
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all if there are none")
    parser.add_argument("--every", type=int, default=1, help="of how many tests one is run (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="let pytest speak")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    for suite in options.suites or SUITES:
        counts = compared(suite, outcomes_of(suite, options.every, not options.verbose))
        total += counts
        print(f"{suite:20} {said(counts)}", flush=True)
    print(f"{'all':20} {said(total)}")
    return int(total["passed"] < ENOUGH * (total["passed"] + total["failed"]))


def said(counts: Counter[str]) -> str:
    """Counts in words."""
    whole = counts["passed"] + counts["failed"]
    part = f" ({counts['passed'] / whole:.2%})" if whole else ""
    return f"{counts['passed']:,} of {whole:,} pass{part}, {counts['left out']:,} are left out"


if __name__ == "__main__":
    sys.exit(main())
