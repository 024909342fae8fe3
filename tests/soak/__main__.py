"""Soak a real service: `PYTHONPATH=tests python -m soak [--minutes M] [--seed S]`.

Runs four client programs while processes are killed and stopped, and prints what was done and seen. The exit status is 1 if
anything did not hold; then the seed is printed, too.
"""

from __future__ import annotations

import argparse
import sys
import time

from .running import soak


def main() -> int:
    """Soak, and print what came of it. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m soak", description="Soak a real service.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000, help="of what is done to it")
    parser.add_argument("--log", help="a file for the log of the service")
    said = parser.parse_args()
    outcome = soak(said.minutes * 60, said.seed)
    if said.log is not None:
        with open(said.log, "w") as file:  # noqa: PTH123 — a path that somebody typed
            file.writelines(f"{line}\n" for line in outcome.log)
    print(outcome.block())
    for failure in outcome.failures:
        print(f"seed {said.seed}: {failure}", file=sys.stderr)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
