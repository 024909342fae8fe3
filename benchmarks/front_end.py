"""How `torch_front_end.py` and `jax_front_end.py` compare: contenders in turns, each turn alone in a process of its own.

A figure is the median of the turns, a ratio the median of the ratios to the first contender's turn of the same round, with the
least and the most.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Size = TypeVar("Size")


def compare(
    script: str, library: str, contenders: Sequence[str], sizes: Mapping[str, Size], measured: Callable[[str, Size], float],
    rounds: int,
) -> None:  # fmt: skip
    """Be the command line of a script: measure its contenders, of which the first is the `library` alone.

    `measured` is called in a process of its own, and gives the seconds of a step.
    """
    parser = argparse.ArgumentParser(description=f"Measure {library}'s programs on GT beside {library} alone.")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--sizes", default=",".join(sizes), help="a comma-separated choice of: %(default)s")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = options.sizes.split(",")
    if options.alone:
        print(measured(options.alone, sizes[chosen[0]]))
        return
    width = max(map(len, contenders))
    for name in chosen:
        seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
        for _ in range(options.rounds):
            for contender in contenders:
                command = [sys.executable, "-W", "ignore", script, "--alone", contender, "--sizes", name]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds[contender].append(float(out.split()[-1]))
        for contender, found in seconds.items():
            ratios = [a / b for a, b in zip(found, seconds[contenders[0]], strict=True)]
            print(
                f"{name:6} {contender:{width}} {statistics.median(found) * 1e3:8.2f} ms a step   / {library} "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
