"""Trains the network of `gt up --policy learned`, and writes its weights: minutes of one core.

    python benchmarks/train_policy.py [--seed 1] [--generations 40] [--processes 1] [--output FILE]

How it is trained, and for what reward, is in `dispatcher/pacing_simulator/training.py`. One seed makes one file, on one kind of
machine, with any number of processes.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gt.dispatcher.pacing.learned_policy import FEATURES, HIDDEN, WEIGHTS_PATH
from gt.dispatcher.pacing_simulator.training import GENERATIONS, train


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--generations", type=int, default=GENERATIONS)
    parser.add_argument("--output", type=Path, default=WEIGHTS_PATH)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    begin = time.monotonic()

    def say(generation: int, mean: float) -> None:
        print(f"generation {generation}: reward {mean:.3f}, {time.monotonic() - begin:.0f} s", flush=True)

    with ProcessPoolExecutor(options.processes) as pool:
        parameters = train(options.seed, options.generations, say, each=pool.map)
    made_by = f"python benchmarks/train_policy.py --seed {options.seed} --generations {options.generations}"
    known = {"made by": made_by, "features": FEATURES, "hidden": HIDDEN, "parameters": parameters}
    options.output.write_text(json.dumps(known) + "\n", "utf-8")


if __name__ == "__main__":
    main()
