"""The cost of recovery: the pauses of a program when processes of its service are killed or stopped, and the bandwidth of puts
that the client keeps. (`mark_cost.py` measures the cost of marks without any loss.)

    python benchmarks/recovery.py [--kinds kill-worker,…] [--configs pipeline,…] [--repetitions 5] [--steps 300] [--json FILE]

A run is a service (`gt up`) and a training, each in a process of its own. The training has dropout, Adam and a learning-rate
schedule, and fetches its loss at every step: fully sharded on three workers, data- and tensor-parallel on four, as a pipeline on
two. Its losses and weights are compared bit for bit with those of a run that nobody disturbs, and it must do every step once.

During a run one kind of harm is done at random moments, after the last one is healed:

* `kill-worker`, `kill-dispatcher`, `kill-both` (SIGKILL, `--harms` times a run): the pause is the time from the kill until the
  dispatcher logs that the session goes on from a mark (for the last time before the training completes a step). Then all
  workers have its tensors again, and compute what the client sends again: what the session had computed after that mark is
  *not* in the pause. Beside it are what the dispatcher says itself, which does not have the time until it notices, and at worst
  the client's time from hearing of the loss until it has computed everything again (or has an answer).
* `stop-12s` (SIGSTOP of a worker, SIGCONT after 12 s, once a run): the pause is the time from SIGCONT until the training
  completes a step. Nothing should go back, for the lease is longer (30 s; `--lease`).
* `stop-for-good` (SIGSTOP of a worker, once a run): the pause is the time from the signal until the session goes on, as above,
  less the lease.

One kind does no harm:

* `put`: 64 MiB put at each step, in turns with a memcpy of as much, while the session keeps what it sends (and again with
  GT_RECOVERY=0): eight at a time until the worker has the last, as a program puts its batches while others are computed; and each
  until the worker has it. All bytes by all seconds, medians beside that.

In runs with harm marks are taken every `--mark-seconds`, because the runs are short. The exit status is 1 if any bit differs, a
step is missing or done twice, any process logs or raises an error, or a harm was not noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import suite

KILLS: Final = {"kill-worker": ("worker",), "kill-dispatcher": ("dispatcher",), "kill-both": ("dispatcher", "worker")}
"""What is killed at a time."""
STOPS: Final = ("stop-12s", "stop-for-good")
STOP_SECONDS: Final = 12.0
KINDS: Final = (*KILLS, *STOPS, "put")
PUT_BYTES: Final = 64 << 20
PUTS_AT_ONCE: Final = 8
WARM_SHARE: Final = 0.2
"""The share of the puts, at first, that is not counted."""
LEFT_STEPS: Final = 60
"""The steps that a training has left when the last harm is due, if it has that many: more than it does until the harm comes."""
PATIENCE: Final = 120.0
"""Seconds, beside any lease, in which a service must start, or heal, or a program make a step."""
ENDING: Final = 20.0
"""Seconds that a process has to end by itself."""
GOES_ON: Final = re.compile(r"client \d+ goes on from .*after ([\d.]+) s")
CAUGHT_UP: Final = re.compile(r"the session goes on after ([\d.]+) s")

CONFIGS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "fully-sharded": (3, {"mesh": {"data": 3}, "sharding_config": {"net": {"strategy": "fully_sharded"}}}),
    "data-and-tensor": (
        4,
        {
            "mesh": {"data": 2, "model": 2},
            "sharding_config": {
                "net": {"strategy": "data_parallel"},
                "layer0": {"strategy": "tensor_parallel", "dimension": 0},
                "layer1": {"strategy": "tensor_parallel", "dimension": 1},
            },
        },
    ),
    "pipeline": (
        2,
        {
            "mesh": {"stages": 2},
            "sharding_config": {
                "layer*": {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 4},
            },
        },
    ),
}
"""The workers and the config of each training."""


class Failed(Exception):
    """A run that did not come to its end; says why."""


# in the program's process


def say(**said: Any) -> None:
    """One line of JSON."""
    print(json.dumps(said), flush=True)


class SaidRecords(logging.Handler):
    """What the session logs, as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        say(log=record.getMessage(), level=record.levelname.lower())


def train(address: str, steps: int, config: dict[str, Any]) -> None:
    """A training, which says when it has done each step, and at its end what came of it."""
    import gt
    from gt import nn

    gt.connect(address, config=config)
    gt.manual_seed(7)
    rng = np.random.default_rng(0)
    model = nn.Sequential()
    for at, (into, out) in enumerate([(20, 64), (64, 64), (64, 10)]):
        with gt.signal.context("net"), gt.signal.context(f"layer{at}"):
            model.append(nn.Linear(into, out))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    schedule = gt.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
    losses = []
    for step in range(steps):
        with gt.signal.context("net"):
            x = gt.from_numpy(rng.standard_normal((32, 20), np.float32))
            labels = gt.from_numpy(rng.integers(0, 10, 32))
            for at, layer in enumerate(model):
                with gt.signal.context(f"layer{at}"):
                    x = nn.functional.dropout(layer(x).relu(), 0.1) if at < 2 else layer(x)
            loss = nn.functional.cross_entropy(x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        say(step=step, at=time.time())
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    found = gt.stats()
    say(
        losses=[loss.hex() for loss in losses], weights=weights.hexdigest(), marks=found["marks"],
        recovery_seconds=found["recovery_seconds"],
    )  # fmt: skip


def put(address: str, steps: int, config: dict[str, Any]) -> None:
    """Puts in turns with copies of as many bytes, and what both took."""
    import workloads

    import gt

    gt.connect(address, config=config or None)
    host = np.random.default_rng(0).integers(-9, 10, PUT_BYTES // 4).astype(np.float32)
    copy = np.empty_like(host)
    held: list[gt.Tensor] = []

    def several() -> None:
        for _ in range(PUTS_AT_ONCE):
            held[:] = [gt.from_numpy(host)]
        gt.synchronize()

    works: dict[str, tuple[int, Callable[[], object]]] = {
        "puts": (PUTS_AT_ONCE, several),
        "put and wait": (1, workloads.put(host)),
        "memcpy": (1, lambda: np.copyto(copy, host)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for step in range(steps):
        host[0] = step
        for name, (count, work) in works.items():
            begin = time.perf_counter()
            work()
            seconds[name].append((time.perf_counter() - begin) / count)
        say(step=step, at=time.time())
    right = bool(gt.from_numpy(host).sum().item() == float(host.sum(dtype=np.float64)))
    say(seconds=seconds, right=right, marks=gt.stats()["marks"])


PROGRAMS: Final = {"train": train, "put": put}


def program(name: str, address: str, steps: int, config: dict[str, Any]) -> None:
    """Be the program of this name."""
    log = logging.getLogger("gt")
    log.setLevel(logging.INFO)
    log.addHandler(SaidRecords())
    PROGRAMS[name](address, steps, config)


# processes


class Child:
    """A process and the lines that it has written."""

    def __init__(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self.lines: list[str] = []
        self.said: list[dict[str, Any]] = []
        """The lines that are JSON objects."""
        self.over = False
        self.heard = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            with self.heard:
                self.lines.append(line.rstrip("\n"))
                if isinstance(found, dict):
                    self.said.append(found)
                self.heard.notify_all()
        with self.heard:
            self.over = True
            self.heard.notify_all()

    def await_line(self, wanted: Callable[[], bool], what: str, seconds: float, others: Sequence[Child] = ()) -> None:
        """Wait until what was said is as `wanted`. Raises `Failed` if this process or one of the `others` ends before."""
        deadline = time.monotonic() + seconds
        with self.heard:
            while not wanted():
                ended = next((each for each in (self, *others) if each.over), None)
                if ended is not None:
                    raise Failed(f"{ended.name} ended before {what}: {ended.last()}")
                if time.monotonic() > deadline:
                    raise Failed(f"there was not {what} in {seconds:.0f} s; {self.name} said last: {self.last()}")
                self.heard.wait(0.1)

    def last(self) -> str:
        """Its last lines, those of its steps left out."""
        return " | ".join([line for line in self.lines if '"step"' not in line][-3:])[-500:]

    def end(self) -> None:
        """End it, if it has not ended by itself."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(ENDING)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.reader.join(ENDING)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Service:
    """`gt up` with some workers, in a folder of its own. A context manager."""

    def __init__(self, workers: int, variables: dict[str, str]) -> None:
        self.workers = workers
        self.folder = tempfile.TemporaryDirectory(prefix="gt-", ignore_cleanup_errors=True)
        self.environment = {**os.environ, "TMPDIR": self.folder.name, "XDG_RUNTIME_DIR": self.folder.name, **variables}
        self.environment.pop("GT_CONFIG", None)
        self.address = f"ipc://{self.folder.name}/service"
        self.children: list[Child] = []

    def __enter__(self) -> Service:
        arguments = ["up", "--address", self.address, "--workers", str(self.workers), "--log-level", "info"]
        self.up = self.start("the service", ["-m", "gt", *arguments, "--log-format", "json"])
        ready = f"{self.workers} worker"
        self.up.await_line(lambda: any(ready in line for line in self.up.lines), "a service", PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in [*self.daemons("worker"), *self.daemons("dispatcher")]:
            with contextlib.suppress(psutil.Error):
                daemon.resume()
        for child in reversed(self.children):
            child.end()
        self.folder.cleanup()

    def start(self, name: str, arguments: Sequence[str]) -> Child:
        """Start a process beside it."""
        child = Child(name, arguments, self.environment)
        self.children.append(child)
        return child

    def program(self, name: str, steps: int, config: dict[str, Any]) -> Child:
        """Start a program that uses it."""
        said = json.dumps([name, self.address, steps, config])
        return self.start("the program", [str(Path(__file__).resolve()), "--program", said])

    def daemons(self, room: str) -> list[psutil.Process]:
        """Its living processes of a kind."""
        found = []
        with contextlib.suppress(psutil.Error):
            for each in psutil.Process(self.up.process.pid).children():
                with contextlib.suppress(psutil.Error):  # it has just ended
                    if f"gt.{room}" in each.cmdline():
                        found.append(each)
        return found

    def returns(self) -> list[tuple[float, float]]:
        """When a session went on after it went back, by the clock, and how long that took after it was noticed, in seconds."""
        return [
            (datetime.fromisoformat(said["time"]).timestamp(), float(match[1]))
            for said in list(self.up.said)
            if (match := GOES_ON.search(said.get("text", "")))
        ]

    def errors(self) -> list[str]:
        """What its processes have logged as errors."""
        bad = ("error", "critical")
        return [f"{said.get('room')}: {said.get('text')}" for said in self.up.said if said.get("level") in bad]


# runs


@dataclass
class Run:
    """What came of one training."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    """The number of each step, and when it was done."""
    result: dict[str, Any] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)
    """Seconds, as this module's documentation says, one for each harm."""
    noticed: list[float] = field(default_factory=list)
    """What the dispatcher says of the same."""
    caught_up: list[float] = field(default_factory=list)
    """What the client says, with everything that was computed again."""
    returns: int = 0
    """How often the session went back and on."""
    errors: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What must be the same in each run of a config."""
        return self.result.get("losses"), self.result.get("weights"), [number for number, _ in self.steps]


def trained(
    kind: str, name: str, steps: int, variables: dict[str, str], *, harms: int = 0, lease: float = 0.0, seed: int = 0
) -> Run:
    """A training of this config to which harm of a kind is done so many times; `seed` draws when, and to whom."""
    workers, config = CONFIGS[name]
    run, chance = Run(), random.Random(seed)
    with Service(workers, variables) as service:
        child = service.program("train", steps, config)
        try:
            first, last = min(5, steps // 4), max(steps - LEFT_STEPS, steps // 2)
            for moment in sorted(chance.sample(range(first, last), min(harms, last - first))):
                await_step(child, moment)
                time.sleep(chance.random() * 0.05)
                run.pauses.append(_harm(kind, service, child, chance, lease, run))
            deadline = PATIENCE + steps
            child.await_line(
                lambda: bool(child.said) and "losses" in child.said[-1], "an end of the training", deadline
            )
        except Failed as error:
            run.errors.append(str(error))
        child.end()
        run.steps = _steps(child)
        run.result = child.said[-1] if child.said and "losses" in child.said[-1] else {}
        logged = [said for said in child.said if "log" in said]
        run.caught_up = [float(match[1]) for said in logged if (match := CAUGHT_UP.search(said["log"]))]
        run.errors += [f"the program: {said['log']}" for said in logged if said["level"] in ("error", "critical")]
        run.errors += service.errors()
        run.returns = len(service.returns())
    return run


def _steps(child: Child) -> list[tuple[int, float]]:
    return [(said["step"], said["at"]) for said in list(child.said) if "step" in said]


def await_step(child: Child, number: int, after: float = 0.0) -> float:
    """Wait until a step of this number or a later one is done, `after` some time; when it was done."""

    def found() -> list[float]:
        return [at for step, at in _steps(child) if step >= number and at > after]

    child.await_line(lambda: bool(found()), f"a step from {number} on", PATIENCE + number)
    return found()[0]


def _harm(kind: str, service: Service, child: Child, chance: random.Random, lease: float, run: Run) -> float:
    """Do one harm, and wait until it is healed. Returns the seconds that are told of it. Raises `Failed`."""
    before = len(service.returns())
    victims = [chance.choice(service.daemons(room)) for room in KILLS.get(kind, ("worker",))]
    began = time.time()
    for victim in victims:
        victim.kill() if kind in KILLS else victim.suspend()
    if kind == "stop-12s":
        time.sleep(STOP_SECONDS)
        began = time.time()
        victims[0].resume()
        return await_step(child, 0, began) - began
    patience = PATIENCE + lease
    service.up.await_line(lambda: len(service.returns()) > before, "a return of the session", patience, [child])
    done = await_step(child, 0, service.returns()[before][0])
    at, noticed = max(each for each in service.returns() if each[0] < done)
    run.noticed.append(noticed)
    return at - began - (lease if kind == "stop-for-good" else 0.0)


def harmed(kind: str, name: str, calm: Run, options: argparse.Namespace) -> dict[str, Any]:
    """All repetitions of one kind of harm to one config; prints a line."""
    variables = {"GT_MARK_SECONDS": str(options.mark_seconds), "GT_WORKER_LEASE": str(options.lease)}
    harms = options.harms if kind in KILLS else 1
    runs = [
        trained(kind, name, options.steps, variables, harms=harms, lease=options.lease, seed=seed)
        for seed in range(options.repetitions)
    ]
    pauses = [pause for run in runs for pause in run.pauses]
    equal = [run.outcome == calm.outcome for run in runs]
    found = {
        "kind": kind, "config": name, "repetitions": len(runs), "returns": sum(run.returns for run in runs),
        "pauses": pauses, "noticed": [each for run in runs for each in run.noticed],
        "caught_up": [each for run in runs for each in run.caught_up], "equal": all(equal),
        "unfinished": sum(not run.result for run in runs), "errors": [error for run in runs for error in run.errors],
    }  # fmt: skip
    print(harm_line(found), flush=True)
    for error in found["errors"]:
        print(f"    {error}", flush=True)
    return found


def harm_line(found: dict[str, Any]) -> str:
    """A row of the table."""
    pauses, noticed, caught_up = found["pauses"], found["noticed"], found["caught_up"]
    times = f"pause {_of(pauses)}" if pauses else "no pause was measured"
    if noticed:
        times += f", of that at the dispatcher {statistics.median(noticed):.2f} s"
    if caught_up:
        times += f"; {max(caught_up):.1f} s at worst until all was computed again"
    ended = found["repetitions"] - found["unfinished"]
    bits = "the same bits" if found["equal"] else "OTHER BITS OR STEPS" if ended else "no bits"
    if found["unfinished"]:
        bits += f", {found['unfinished']} TRAININGS ENDED TOO SOON"
    errors = f", {len(found['errors'])} ERRORS" if found["errors"] else ""
    what = f"{found['kind']:16} {found['config']:16} {found['repetitions']} runs, {found['returns']} returns"
    return f"{what}: {times}; {bits}{errors}"


def _of(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s"


# undisturbed


def putting(steps: int, *, recovers: bool) -> dict[str, Any]:
    """Bytes a second of puts and of copies; prints a line."""
    errors, said = [], {}
    with Service(1, {} if recovers else {"GT_RECOVERY": "0"}) as service:
        child = service.program("put", steps, {})
        try:
            child.await_line(
                lambda: bool(child.said) and "right" in child.said[-1], "an end of the puts", PATIENCE + steps
            )
            said = child.said[-1]
        except Failed as error:
            errors.append(str(error))
        child.end()
        errors += service.errors()
    if said and not said["right"]:
        errors.append("the sum of what was put is wrong")
    name = "recovery" if recovers else "GT_RECOVERY=0"
    found = {"kind": "put", "config": name, "errors": errors, "equal": True, **said}
    text = "nothing was measured"
    if said:
        counted = {what: each[int(steps * WARM_SHARE) :] for what, each in said["seconds"].items()}
        speed = {what: PUT_BYTES * len(each) / sum(each) / 1e9 for what, each in counted.items()}
        middle = {what: PUT_BYTES / statistics.median(each) / 1e9 for what, each in counted.items()}
        found |= {"speed": speed, "median": middle}
        ratios = [
            f"{what} {speed[what]:.2f} GB/s, of memcpy {speed[what] / speed['memcpy']:.2f}, "
            f"median of {middle[what] / middle['memcpy']:.2f}"
            for what in speed
            if what != "memcpy"
        ]
        text = f"memcpy {speed['memcpy']:.2f} GB/s; {'; '.join(ratios)}; {said['marks']} marks"
    print(f"{'put':16} {name:16} {text}{f', {len(errors)} ERRORS' if errors else ''}", flush=True)
    for error in errors:
        print(f"    {error}", flush=True)
    return found


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows, as they are measured."""
    for name in options.configs:
        harms = [kind for kind in options.kinds if kind in (*KILLS, *STOPS)]
        if harms:
            calm = trained("calm", name, options.steps, {"GT_MARK_SECONDS": str(options.mark_seconds)})
            if calm.errors or not calm.result or calm.returns:
                print(f"{'undisturbed':16} {name:16} {len(calm.errors)} ERRORS", *calm.errors, sep="\n    ", flush=True)
                yield {"kind": "undisturbed", "config": name, "errors": calm.errors, "equal": False}
                continue
            for kind in harms:
                yield harmed(kind, name, calm, options)
    if "put" in options.kinds:
        for recovers in (True, False):
            yield putting(options.put_steps, recovers=recovers)


def choice(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads a comma-separated choice."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [each for each in found if each not in known]:
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}: there are {', '.join(known)}")
        return found

    return read


def main() -> int:
    """Measure, and print a line for each kind and config. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=choice(KINDS), default=",".join(KINDS), help="of: %(default)s")
    parser.add_argument("--configs", type=choice([*CONFIGS]), default=",".join(CONFIGS), help="of: %(default)s")
    parser.add_argument("--repetitions", type=int, default=5, help="runs of each kind of harm and config: %(default)s")
    parser.add_argument("--steps", type=int, default=300, help="of a training: %(default)s")
    parser.add_argument("--harms", type=int, default=3, help="kills in a run: %(default)s")
    parser.add_argument("--lease", type=float, default=30.0, help="GT_WORKER_LEASE, in seconds: %(default)s")
    parser.add_argument(
        "--mark-seconds", type=float, default=0.5, help="GT_MARK_SECONDS of runs with harm: %(default)s"
    )
    parser.add_argument("--put-steps", type=int, default=200, help="for `put`: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program is not None:
        program(*json.loads(options.program))
        return 0
    if "stop-12s" in options.kinds and options.lease <= STOP_SECONDS:
        parser.error(f"stop-12s needs a longer lease than {options.lease:g} s")
    rows = []
    for found in measured(options):
        rows.append(found)
        if options.json:
            text = json.dumps({"machine": suite.machine(), "commit": suite.commit(suite.HERE), "rows": rows}, indent=1)
            options.json.write_text(text + "\n", "utf-8")
    return int(any(found["errors"] or not found["equal"] for found in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    sys.exit(main())
