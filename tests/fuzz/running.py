"""Fuzzing itself: one drawn input after the other, those that break a rule made smaller and kept as files."""

from __future__ import annotations

import hashlib
import random
import traceback
from functools import cache
from pathlib import Path
from typing import Any, Final

from .api_calls import Endless, ending
from .edits import Edit, drawn_edits, edited
from .targets import TARGETS

FAILURES: Final = Path(__file__).parent / "failures"
"""Inputs that once broke a rule, as `TARGET-HASH.bin`; a test replays them for ever."""
INPUT_SECONDS: Final = 20
"""Seconds of processor time after which an input counts as one that is never done with."""


@cache
def samples(name: str) -> list[Any]:
    """The samples of a target."""
    return TARGETS[name].samples()


def finding(name: str, data: bytes) -> str | None:
    """The rule that an input breaks, None if it breaks none."""
    try:
        with ending(INPUT_SECONDS):
            TARGETS[name].check(data)
    except Endless:
        return f"not done within {INPUT_SECONDS} s"
    except Exception as error:  # noqa: BLE001 — whatever it is, it is what fuzzing looks for
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}"
    return None


def drawn_input(name: str, draw: random.Random) -> tuple[Any, list[Edit]]:
    """A sample of a target, and edits of it."""
    return draw.choice(samples(name)), drawn_edits(draw)


def fuzz(name: str, seed: int, known: set[str]) -> str | None:
    """Try the input of a seed. What it found, with the file that keeps a small input that finds it too; nothing of a kind that
    is `known`: an error at one place."""
    sample, edits = drawn_input(name, random.Random(f"{name} {seed}"))
    build = TARGETS[name].build
    found = finding(name, build(edited(sample, edits)))
    if found is None or _kind(name, found) in known:
        return None
    for edit in list(edits):  # without those that it does not need
        fewer = [other for other in edits if other is not edit]
        again = finding(name, build(edited(sample, fewer)))
        if again is not None:
            edits, found = fewer, again
    known.add(_kind(name, found))
    return f"{keep(name, build(edited(sample, edits)))}: {found}"


def _kind(name: str, found: str) -> str:
    """A finding without the numbers in it."""
    return f"{name} {found.partition(': ')[0]}"


def keep(name: str, data: bytes) -> Path:
    """Write an input to the failures."""
    FAILURES.mkdir(exist_ok=True)
    path = FAILURES / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path
