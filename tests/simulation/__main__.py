"""Simulate seeds: `PYTHONPATH=tests python -m simulation [--seeds N] [--first SEED]`.

Prints the seeds that fail, and why, and how many seeds a second were run. The exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

from .running import SimulationFailed, simulate


def main() -> int:
    """Run the seeds. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Simulate whole services.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--recovers",
        action="store_true",
        help="nothing is lost but workers and dispatchers, and no program may hear of it",
    )
    parser.add_argument("--ends-workers", action="store_true", help="the same, and a program asks for what ends them")
    parser.add_argument("--saves", action="store_true", help="programs take snapshots, too, and restore them")
    parser.add_argument("--elastic", action="store_true", help="the same, with spares, and workers that are drained")
    parser.add_argument("--shrinks", action="store_true", help="as --recovers, and some workers never come back")
    parser.add_argument("--unkept", action="store_true", help="no marks are taken, and workers are killed")
    parser.add_argument("--apart", action="store_true", help="as --recovers, and no worker sees the files of another")
    parser.add_argument("--parts", action="store_true", help="as --recovers, and programs give up their connections")
    parser.add_argument("--hands-over", action="store_true", help="as --recovers, and dispatchers end in order")
    parser.add_argument("--mutes", action="store_true", help="the same, and workers do not say what came of marks")
    parser.add_argument(
        "--publishes", action="store_true", help="programs publish, and subscribe to what others have published"
    )
    parser.add_argument(
        "--limits",
        action="store_true",
        help="two users have few sessions and instructions, as a file says that changes",
    )
    parser.add_argument("--moves", action="store_true", help="as --recovers, and sessions move between workers")
    parser.add_argument("--watches", action="store_true", help="some watch, whatever happens")
    said = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.monotonic()
    failed: list[int] = []
    waited = 0
    answers = errors = reconnects = recoveries = marks = refused = drained = shrunk = kept = delivered = events = (
        subscribed
    ) = moved = 0
    seconds = 0.0
    for seed in range(said.first, said.first + said.seeds):
        try:
            outcome = simulate(
                seed,
                saves=said.saves,
                recovers=said.recovers,
                ends_workers=said.ends_workers,
                elastic=said.elastic,
                parts=said.parts,
                mutes=said.mutes,
                hands_over=said.hands_over,
                shrinks=said.shrinks,
                unkept=said.unkept,
                apart=said.apart,
                watches=said.watches,
                publishes=said.publishes,
                limits=said.limits,
                moves=said.moves,
            )
        except SimulationFailed as error:
            failed.append(seed)
            print(f"seed {seed}: {error}", flush=True)
            continue
        answers += outcome.answers
        errors += outcome.errors
        reconnects += outcome.reconnects
        recoveries += outcome.recoveries
        marks += outcome.marks
        refused += outcome.refused
        drained += outcome.drained
        shrunk += outcome.shrunk
        kept += outcome.kept
        delivered += outcome.delivered
        events += outcome.events
        subscribed += outcome.subscribed
        waited += outcome.waited
        moved += outcome.moved
        seconds += outcome.seconds
    took = time.monotonic() - began
    print(
        f"{said.seeds:,} seeds in {took:.0f} s ({said.seeds / took:.1f} per second): {seconds / 3600:,.1f} simulated hours, "
        f"{answers:,} values fetched, {errors:,} errors that had to come, {reconnects:,} connections opened again, "
        f"{marks:,} marks, {recoveries:,} sessions that went back and on, {refused:,} fetches of what ends workers, "
        f"{drained:,} workers drained, {shrunk:,} sessions that went on with fewer workers, "
        f"{kept:,} that kept some tensors without marks, {delivered:,} parcels of marks that peers sent, "
        f"{events:,} events read by watchers, {subscribed:,} versions read of what was published, "
        f"{waited:,} sessions that waited in the queue, {moved:,} moved to other workers"
    )
    if failed:
        print(f"{len(failed)} failed: {' '.join(map(str, failed))}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
