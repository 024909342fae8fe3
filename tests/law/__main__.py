"""Run drawn programs by the thousand: `PYTHONPATH=tests python -m law FIRST COUNT [--wild] [--reduce]`.

Prints whatever breaks the law, with the seed that replays it. `--wild`: under configs that are seldom valid, which must
be refused with a clear error or else hold. `--reduce` makes each failing case small.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter

from .places import Place, draw_place, wild
from .programs import Program, draw_program
from .reducing import reduced
from .running import Discarded, assert_law

PLACES = 2
"""Where each program runs, beside one worker."""
WILD_PLACES = 8
"""Where each program runs, when most of the configs are refused."""


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


def wild_case(seed: int) -> tuple[Program, list[Place]]:
    """The program of a seed, and places of which most cannot be."""
    draws = Seeded(seed)
    return draw_program(draws), [wild(draws) for _ in range(WILD_PLACES)]


def failure(program: Program, place: Place) -> BaseException | None:
    """How a case breaks the law; None when it does not, or proves nothing."""
    try:
        list(assert_law(program, [place]))
    except Discarded:
        return None
    except (AssertionError, Exception) as error:  # noqa: BLE001  # whatever it is, it is a finding
        return error
    return None


def smallest(program: Program, place: Place) -> tuple[Program, Place]:
    """The case made small: it fails with an error of the same class, from the same line."""
    wanted = _kind(failure(program, place))
    return reduced(program, place, lambda program, place: _kind(failure(program, place)) == wanted)


def _kind(error: BaseException | None) -> tuple[object, ...] | None:
    if error is None:
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, last.filename, last.name


def main(first: int, count: int, *, seldom_valid: bool, reduce: bool) -> int:
    """Run the cases of `count` seeds; the number of those that fail."""
    outcomes: Counter[str] = Counter()
    started = time.perf_counter()
    failed = 0
    for seed in range(first, first + count):
        program, places = (wild_case if seldom_valid else case)(seed)
        try:
            for refusal in assert_law(program, places):
                outcomes["held" if refusal is None else "refused"] += 1
                if refusal and not seldom_valid:
                    print(f"seed {seed}: {refusal}")
        except Discarded as reason:
            outcomes[f"discarded: {reason}"] += 1
        except (AssertionError, Exception) as error:  # noqa: BLE001  # whatever it is, it is a finding
            failed += 1
            outcomes[f"FAILED: {type(error).__name__}"] += 1
            for place in places:
                found = failure(program, place)
                if found is not None:
                    small = smallest(program, place) if reduce else (program, place)
                    print(f"--- seed {seed}", *small, sep="\n")
                    traceback.print_exception(failure(*small), limit=-4, file=sys.stdout)
                    break
    for outcome, number in outcomes.most_common():
        print(f"{number:7} {outcome}")
    print(f"{count} programs in {time.perf_counter() - started:.1f} s")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="law", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--wild", action="store_true")
    parser.add_argument("--reduce", action="store_true")
    given = parser.parse_args()
    sys.exit(min(1, main(given.first, given.count, seldom_valid=given.wild, reduce=given.reduce)))
