"""The law: random programs under random configs, on one to eight workers, see what one worker sees, and NumPy.

What is drawn and how it is judged is in `programs.py`, `places.py`, `meaning.py` and `running.py`; `test_checker.py` says
that it can fail, `test_found.py` what it found.
"""

from __future__ import annotations

import pytest
from effort import PROVED, cases
from law.__main__ import case, exact_case, judged, network_case, wild_case
from law.networks import Network
from law.places import Place
from law.programs import Program
from law.running import Discarded

TRAINED = "networks trained under a config, on one to eight workers"
SAME = "programs and networks in blocks, on one to eight workers, to the last bit"
HELD = "programs under a config, on one to eight workers"
REFUSED = "configs that cannot be, refused with a clear error"


def batches(seeds: int, size: int) -> list[range]:
    """The seeds from 0 up, so many to a test."""
    return [range(start, min(start + size, seeds)) for start in range(0, seeds, size)]


def name(seeds: range) -> str:
    return f"{seeds[0]}-{seeds[-1]}"


def holds(subject: Program | Network, places: list[Place], replay: str, what: str = HELD) -> None:
    """Hold a program or a network to the law; a failure says how to see it again."""
    try:
        for refusal in judged(subject, places):
            PROVED[REFUSED if refusal else what] += 1
    except Discarded:
        return
    except (AssertionError, Exception) as error:
        error.add_note(f"replay: PYTHONPATH=tests python -m law {replay} --reduce\n{subject}")
        raise


@pytest.mark.parametrize("seeds", batches(cases(150), 10), ids=name)
def test_annotations_never_change_values(seeds: range) -> None:
    """Whatever a program computes, and wherever its config puts that, it sees the same values and leaves nothing."""
    for seed in seeds:
        holds(*case(seed), f"{seed} 1")


@pytest.mark.parametrize("seeds", batches(cases(20), 4), ids=name)
def test_networks_learn_the_same_wherever_they_are(seeds: range) -> None:
    """Losses, gradients and parameters of a training are those of one worker; microbatches and stages are no exception."""
    for seed in seeds:
        holds(*network_case(seed), f"{seed} 1 --networks", TRAINED)


@pytest.mark.parametrize("seeds", batches(cases(40), 5), ids=name)
def test_deterministic_configs_never_change_a_bit(seeds: range) -> None:
    """With `deterministic: true` what many workers see are the bits that one worker sees under the same word."""
    for seed in seeds:
        holds(*exact_case(seed), f"{seed} 1 --exact", SAME)


@pytest.mark.parametrize("seeds", batches(cases(100), 20), ids=name)
def test_a_config_holds_or_is_refused_with_one_clear_error(seeds: range) -> None:
    """What does not fit together is refused, naming line and key and what would do; never an assertion or a wait."""
    for seed in seeds:
        holds(*wild_case(seed), f"{seed} 1 --wild")
