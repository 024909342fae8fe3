"""The law: random programs under random configs, on one to five workers, see what one worker sees, and NumPy.

What is drawn and how it is judged is in `programs.py`, `places.py`, `meaning.py` and `running.py`. A seed that fails
here is replayed by `PYTHONPATH=tests python -m law SEED 1`.
"""

from __future__ import annotations

import pytest
from effort import PROVED, cases
from law.__main__ import case
from law.running import Discarded, assert_law

SEEDS = cases(160)
BATCHES = [range(start, min(start + 10, SEEDS)) for start in range(0, SEEDS, 10)]


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_annotations_never_change_values(seeds: range) -> None:
    """Whatever a program computes, and wherever its config puts that, it sees the same values and leaves nothing."""
    for seed in seeds:
        program, places = case(seed)
        try:
            assert_law(program, places)
        except Discarded:
            continue
        except Exception as error:
            error.add_note(f"seed {seed}\n{program}\n" + "\n".join(map(str, places)))
            raise
        PROVED["programs under a config, on one to five workers"] += len(places)
