"""Fuzz for some minutes: `PYTHONPATH=tests python -m fuzz [--minutes M] [--seed S] [--coverage] [TARGET …]`.

Goes round the targets (`targets.py`), the dispatcher's more often than decoders, and the public API. Prints what breaks a
rule, which file keeps the input, and inputs per second. `--coverage` gives one target to atheris, if that is installed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from .api_calls import encoded_session, public_calls, violation
from .running import fuzz, keep, samples
from .targets import TARGETS

API = "api"
DECODING = (
    "gt.wire.",
    "gt.ir.",
    "gt.sharding.",
    "gt.instruction_log.",
    "gt.monitor.reading",
    "gt.client.io.",
    "gt.dispatcher.state.mark_bytes",
    "gt.dispatcher.bulk_window",
    "gt.dispatcher.number_file",
    "gt.worker.snapshots.",
)
SHARE_SECONDS = 2.0
"""Seconds for which one target is fuzzed before the next one."""
FIRST_SEED = 1_000_000
"""Below are the seeds that tests draw."""


def main() -> int:
    """Fuzz, and say what was found. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Fuzz decoders, the dispatcher and the public API."
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000 * FIRST_SEED, help="the first seed")
    parser.add_argument("--coverage", action="store_true", help="coverage-guided, by atheris; one target")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    names = chosen.targets or [*TARGETS, API]
    if chosen.coverage:
        return _guided(names[0], chosen.minutes)
    logging.disable()
    with encoded_session():
        return _drawn(names, chosen.minutes * 60, chosen.seed)


def _drawn(names: list[str], seconds: float, seed: int) -> int:
    """Fuzz by seeds, one target after the other, until the time is over."""
    began = time.monotonic()
    tried: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    found = 0
    known: set[str] = set()
    calls = list(public_calls().items()) if API in names else []
    while time.monotonic() - began < seconds:
        for name in names:
            start = time.monotonic()
            while (now := time.monotonic()) - start < SHARE_SECONDS and now - began < seconds:
                at = seed + tried[name]
                tried[name] += 1
                wrong = violation(*calls[at % len(calls)], at) if name == API else fuzz(name, at, known)
                if wrong is not None:
                    found += 1
                    print(f"{name}, seed {at}: {wrong}", flush=True)
            spent[name] += time.monotonic() - start
    for name in names:
        print(f"{name:10} {tried[name]:10,} inputs {tried[name] / max(spent[name], 1e-9):10,.0f} per second")
    print(f"{sum(tried.values()):,} inputs in {time.monotonic() - began:.0f} s, {found} findings")
    return 1 if found else 0


def _decoding() -> Iterator[FunctionType]:
    """The functions of the modules that decode, whose branches atheris is to see."""
    for name, module in list(sys.modules.items()):
        if name.startswith(DECODING):
            for value in list(vars(module).values()):
                holders = vars(value).values() if isinstance(value, type) and value.__module__ == name else (value,)
                yield from (each for each in holders if isinstance(each, FunctionType) and each.__module__ == name)


def _guided(name: str, minutes: float) -> int:
    """Give a target to atheris, which looks for inputs that reach new code."""
    try:
        import atheris
    except ImportError:
        print("coverage-guided fuzzing needs atheris: pip install atheris", file=sys.stderr)
        return 1
    target = TARGETS[name]

    def once(data: bytes) -> None:
        try:
            target.check(data)
        except Exception:
            print(f"{name}: {keep(name, data)}", file=sys.stderr)
            raise

    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for number, sample in enumerate(samples(name)):
            (Path(folder) / str(number)).write_bytes(target.build(sample))
        arguments: list[Any] = [sys.argv[0], f"-max_total_time={int(minutes * 60)}", "-max_len=65536", folder]
        for function in _decoding():
            atheris.instrument_func(function)
        atheris.Setup(arguments, once)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
