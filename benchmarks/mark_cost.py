"""The cost of marks in a training without any loss.

    python benchmarks/mark_cost.py [--configs pipeline,…] [--pairs 16] [--seconds 6] [--json FILE]

The trainings are those of `recovery.py`. In one service, and in one training that goes on and on, marks are taken as often as by
default and not at all, in turns of some seconds: the processes are the same, so what differs between processes is in no ratio.
A pair is two turns that follow each other, in every second pair first the one with marks. The first moments of a turn, in which a
mark of the one before may be written, are not counted.

For each config: the median of the pairs' ratios of the time of a step, with marks by without, with an interval that has it with
95 % confidence or more (`compare.py` says how), and the same of the processor time of all processes. The exit status is 1 if a
process fails, a turn that should have marks has none, or one that should not has some.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import compare
import psutil
import recovery
import suite

SETTLE_SECONDS: Final = 0.5
"""The first part of a turn, which is not counted; the first mark is due at its end."""
STEPS: Final = 10**9
"""More than any training makes: it is ended."""
WARM_STEPS: Final = 300
"""Steps before the first turn."""


class Turn(NamedTuple):
    """A turn: whether with marks, how many there were, and for each step the seconds and the processor seconds."""

    marked: bool
    marks: int
    seconds: float
    processor_seconds: float


# in the dispatcher's process


def dispatcher(arguments: Sequence[str]) -> int:
    """Be a dispatcher that takes no marks until SIGUSR2 comes, and then in turns. Says at each how many there were."""
    from gt.dispatcher import core
    from gt.dispatcher.handlers.marks import MARK_SECONDS, MarkHandler
    from gt.dispatcher.process import main as serve

    handlers: list[MarkHandler] = []

    class SwitchedMarks(MarkHandler):
        """Marks that can be switched off."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.least_seconds = float("inf")
            handlers.append(self)

    def switch(*_: object) -> None:
        (handler,) = handlers
        marked = handler.least_seconds > MARK_SECONDS
        handler.least_seconds = MARK_SECONDS if marked else float("inf")
        for client in handler.service.clients.values():
            client.recovery.next_at = handler.service.now + (SETTLE_SECONDS if marked else float("inf"))
        recovery.say(marked=marked, marks=handler.service.counters.marks)

    signal.signal(signal.SIGUSR2, switch)
    core.MarkHandler = SwitchedMarks  # type: ignore[misc]
    return serve([*arguments])


# in this process


class SwitchedService(recovery.Service):
    """A dispatcher of that kind, and its workers."""

    def __enter__(self) -> SwitchedService:
        common = ["--address", self.address, "--log-format", "json", "--folder", self.folder.name]
        said = json.dumps([*common, "--workers", str(self.workers)])
        self.up = self.start("the dispatcher", [__file__, "--dispatcher", said])
        self.await_log(self.up, "listening at")
        for number in range(self.workers):
            self.await_log(
                self.start(f"worker {number}", ["-P", "-m", "gt.worker", "--device", "cpu", *common]), "at your service"
            )
        return self

    def await_log(self, child: recovery.Child, text: str) -> None:
        """Wait until a process has logged this."""
        child.await_line(lambda: any(text in line for line in child.lines), text, recovery.PATIENCE)

    def processor_seconds(self) -> float:
        """The processor time of all its processes, in seconds."""
        times = [psutil.Process(child.process.pid).cpu_times() for child in self.children]
        return sum(each.user + each.system for each in times)

    def switch(self) -> tuple[bool, int]:
        """Switch marks on or off: whether they are on now, and how many there were."""
        known = len(self.up.said)
        self.up.process.send_signal(signal.SIGUSR2)

        def answers() -> list[dict[str, Any]]:
            return [said for said in self.up.said[known:] if "marks" in said]

        self.up.await_line(lambda: bool(answers()), "an answer", recovery.PATIENCE)
        return answers()[0]["marked"], answers()[0]["marks"]


def turns(service: SwitchedService, child: recovery.Child, seconds: float) -> Iterator[Turn]:
    """Turns without an end: without marks, with, with, without, and so on."""
    marked = False
    for wanted in itertools.cycle((False, True, True, False)):
        before = -1
        while before < 0 or marked != wanted:
            marked, before = service.switch()
        time.sleep(SETTLE_SECONDS)
        known, used = len(child.said), service.processor_seconds()
        time.sleep(seconds)
        times = [said["at"] for said in child.said[known:] if "step" in said]
        used = service.processor_seconds() - used
        if child.over or len(times) < 2:
            raise recovery.Failed(f"no steps in {seconds:g} s; the training said last: {child.last()}")
        marked, after = service.switch()
        steps = len(times) - 1
        yield Turn(wanted, after - before, (times[-1] - times[0]) / steps, used / (steps + 1))


def measured(name: str, pairs: int, seconds: float) -> dict[str, Any]:
    """Measure the cost of marks in the training of one config, in `pairs` of turns of so many seconds; print a line."""
    workers, config = recovery.CONFIGS[name]
    found: list[Turn] = []
    errors = []
    with SwitchedService(workers, {}) as service:
        child = service.program("train", STEPS, config)
        try:
            recovery.await_step(child, WARM_STEPS)
            found = list(itertools.islice(turns(service, child, seconds), 2 * pairs))
        except recovery.Failed as error:
            errors.append(str(error))
        errors += service.errors()
        child.end()
    errors += [
        f"{turn.marks} marks in a turn {'with' if turn.marked else 'without'}"
        for turn in found
        if turn.marked != bool(turn.marks)
    ]
    row: dict[str, Any] = {"config": name, "turns": found, "errors": errors}
    text = "no ratio was measured"
    if not errors:
        both = [sorted(pair, key=lambda turn: turn.marked) for pair in zip(found[::2], found[1::2], strict=True)]
        row["ratios"] = {
            "time": compare.interval([on.seconds / off.seconds for off, on in both]),
            "processor time": compare.interval([on.processor_seconds / off.processor_seconds for off, on in both]),
        }
        said = "; ".join(
            f"{what} with marks / without = {compare.said(ratio)}" for what, ratio in row["ratios"].items()
        )
        rate = sum(turn.marks for turn in found) / pairs / (seconds + SETTLE_SECONDS)
        step = statistics.median(turn.seconds for turn in found)
        text = f"{pairs} pairs, {said}; {rate:.2f} marks a second, steps of {step * 1e3:.2f} ms"
    print(f"{name:16} {text}{f', {len(errors)} ERRORS' if errors else ''}", flush=True)
    for error in errors:
        print(f"    {error}", flush=True)
    return row


def main() -> int:
    """Measure, and print a line for each config. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*recovery.CONFIGS]
    parser.add_argument("--configs", type=recovery.choice(known), default=",".join(known), help="of: %(default)s")
    parser.add_argument("--pairs", type=int, default=16, help="of turns, at least 6: %(default)s")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--dispatcher", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dispatcher is not None:
        return dispatcher(json.loads(options.dispatcher))
    if options.pairs < 6:
        parser.error(f"--pairs {options.pairs} are too few for an interval: 6 or more")
    rows = []
    for name in options.configs:
        rows.append(measured(name, options.pairs, options.seconds))
        if options.json:
            text = json.dumps({"machine": suite.machine(), "commit": suite.commit(suite.HERE), "rows": rows}, indent=1)
            options.json.write_text(text + "\n", "utf-8")
    return int(any(row["errors"] for row in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    sys.exit(main())
