"""Run drawn programs by the thousand: `PYTHONPATH=tests python -m law FIRST COUNT`. Prints whatever breaks the law."""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections import Counter

from .places import Place, draw_place
from .programs import Program, draw_program
from .running import Discarded, assert_law

PLACES = 2
"""Where each program runs, beside one worker."""


class Seeded:
    """Choices of a plain seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return self._random.randrange(count)


def case(seed: int) -> tuple[Program, list[Place]]:
    """The program and the places of a seed."""
    draws = Seeded(seed)
    return draw_program(draws), [draw_place(draws) for _ in range(PLACES)]


def main(first: int, count: int) -> int:
    """Run the cases of `count` seeds; the number of those that fail."""
    outcomes: Counter[str] = Counter()
    started = time.perf_counter()
    failed = 0
    for seed in range(first, first + count):
        program, places = case(seed)
        try:
            assert_law(program, places)
        except Discarded as reason:
            outcomes[f"discarded: {reason}"] += 1
        except (AssertionError, Exception) as error:  # noqa: BLE001  # whatever it is, it is a finding
            failed += 1
            outcomes[f"FAILED: {type(error).__name__}"] += 1
            print(f"--- seed {seed}\n{program}", *places, sep="\n")
            traceback.print_exc(limit=-4, file=sys.stdout)
        else:
            outcomes["held"] += 1
    for outcome, number in outcomes.most_common():
        print(f"{number:7} {outcome}")
    print(f"{count} cases in {time.perf_counter() - started:.1f} s")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]))))
