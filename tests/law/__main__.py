"""Run drawn programs by the thousand: `PYTHONPATH=tests python -m law FIRST COUNT [--wild | --networks | --exact] [--reduce]`.

Prints whatever breaks the law, with the seed that replays it. `--wild`: under configs that are seldom valid, which must
be refused with a clear error or else hold. `--networks`: training loops in place of programs. `--exact`: programs and
networks under configs that are deterministic, which must give the same bits. `--reduce` makes each
failing case small.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from .drawing import draw_program
from .networks import Network, draw_network
from .places import Place, draw_place, exact_place, wild
from .programs import Program
from .reducing import reduced
from .running import Discarded, assert_law, assert_same_training

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
    return draw_program(draws), cut([draw_place(draws) for _ in range(PLACES)], seed)


def cut(places: list[Place], seed: int) -> list[Place]:
    """Places, in the last of which plans are cut for one seed of three."""
    last = places[-1]
    if seed % 3 == 1 and last.config is not None:
        places[-1] = last._replace(config={**last.config, "max_plan": "3us" if seed % 2 else "150us"})
    return places


def wild_case(seed: int) -> tuple[Program, list[Place]]:
    """The program of a seed, and places of which most cannot be."""
    draws = Seeded(seed)
    return draw_program(draws), [wild(draws) for _ in range(WILD_PLACES)]


def network_case(seed: int) -> tuple[Network, list[Place]]:
    """The network of a seed, and where it is trained."""
    draws = Seeded(seed)
    return draw_network(draws), cut([draw_place(draws) for _ in range(PLACES)], seed)


def exact_case(seed: int) -> tuple[Program | Network, list[Place]]:
    """The program or network of a seed, and places where every bit of it is determined."""
    draws = Seeded(seed)
    subject = draw_network(draws) if seed % 3 == 0 else draw_program(draws)
    return subject, cut([exact_place(draws) for _ in range(PLACES)], seed)


KINDS: Final[dict[str, Callable[[int], tuple[Any, list[Place]]]]] = {
    "programs": case, "wild": wild_case, "networks": network_case, "exact": exact_case
}  # fmt: skip


def judged(subject: Program | Network, places: list[Place]) -> Iterator[str | None]:
    """For each place None when the law holds there, or the error by which its config was refused."""
    if isinstance(subject, Network):
        return assert_same_training(subject, places)
    return assert_law(subject, places)


def failure(subject: Program | Network, place: Place) -> BaseException | None:
    """How a case breaks the law; None when it does not, or proves nothing."""
    try:
        list(judged(subject, [place]))
    except Discarded:
        return None
    except (AssertionError, Exception) as error:  # noqa: BLE001  # whatever it is, it is a finding
        return error
    return None


def smallest(subject: Any, place: Place) -> tuple[Any, Place]:
    """The case made small: it fails with an error of the same class, from the same line."""
    wanted = _kind(failure(subject, place))
    return reduced(subject, place, lambda subject, place: _kind(failure(subject, place)) == wanted)


def _kind(error: BaseException | None) -> tuple[object, ...] | None:
    if error is None:
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, last.filename, last.name


def main(first: int, count: int, kind: str, *, reduce: bool) -> int:
    """Run the cases of `count` seeds; the number of those that fail."""
    outcomes: Counter[str] = Counter()
    started = time.perf_counter()
    failed = 0
    for seed in range(first, first + count):
        subject, places = KINDS[kind](seed)
        try:
            for refusal in judged(subject, places):
                outcomes["held" if refusal is None else "refused"] += 1
                if refusal and kind != "wild":
                    print(f"seed {seed}: {refusal}")
        except Discarded as reason:
            outcomes[f"discarded: {reason}"] += 1
        except (AssertionError, Exception) as error:  # noqa: BLE001  # whatever it is, it is a finding
            failed += 1
            outcomes[f"FAILED: {type(error).__name__}"] += 1
            for place in places:
                found = failure(subject, place)
                if found is not None:
                    small = smallest(subject, place) if reduce else (subject, place)
                    print(f"--- seed {seed}", *small, sep="\n")
                    traceback.print_exception(failure(*small) or found, limit=-4, chain=False, file=sys.stdout)
                    sys.stdout.flush()
                    break
    for outcome, number in outcomes.most_common():
        print(f"{number:7} {outcome}")
    print(f"{count} {kind} in {time.perf_counter() - started:.1f} s")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="law", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--wild", dest="kind", action="store_const", const="wild", default="programs")
    parser.add_argument("--networks", dest="kind", action="store_const", const="networks")
    parser.add_argument("--reduce", action="store_true")
    parser.add_argument("--exact", dest="kind", action="store_const", const="exact")
    given = parser.parse_args()
    sys.exit(min(1, main(given.first, given.count, given.kind, reduce=given.reduce)))
