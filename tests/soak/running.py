"""One soak run: a service, four programs, what is done to them, and what must hold meanwhile and at the end."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import psutil
from daemons import Machine, Process, ends

from .disturbances import OF_WORKERS, Disturber
from .outcome import Outcome, Usage, Witness, said_in
from .programs import HANG_SECONDS, PROGRAMS

WORKERS: Final = 3
MARK_SECONDS: Final = 0.3
WORKER_LEASE_SECONDS: Final = 3.0
LEASE_SECONDS: Final = 10.0
"""After so long a dispatcher gives up the sessions of the one before that do not come back."""
WARM_SECONDS: Final = 4.0
"""How long the programs run before anything is done to them."""
GAP_SECONDS: Final = (0.5, 4.0)
"""The least and the most seconds between two disturbances, in a run of `DECK_SECONDS` or more; less in shorter ones."""
DECK_SECONDS: Final = 40.0
MAX_IDLE_LOSSES: Final = 2
"""After so many disturbances of workers without progress of a program there is none until all have come further: a session that
goes back again and again without coming further is given up, by design."""
QUIET_SECONDS: Final = 25.0
"""Seconds within which all is as before when the last program has ended. For twenty of them workers may keep memory of a client
mapped that has left them."""
CLIENT_MEMORY: Final = "/memfd:gt-bulk-N (deleted)"
"""Memory of a client, which no worker may have mapped when what it uses is noted at first."""
SAMPLE_SECONDS: Final = 1.0
GROWTH: Final = {"supervisor": 16 << 20, "dispatcher": 128 << 20, "worker": 256 << 20}
"""The most bytes by which a daemon's resident memory may grow."""
TESTS: Final = Path(__file__).parent.parent
_NUMBERS: Final = re.compile(r"\b[0-9a-f]{8,}\b|\d+")
LAUNCH: Final = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from soak.programs import main; main()"


class Broken(Exception):
    """Something does not hold, so that it is no use to go on."""


class SoakRun:
    """One run on a machine of its own for `seconds`, with what `seed` draws."""

    def __init__(self, machine: Machine, seconds: float, seed: int) -> None:
        self.machine = machine
        machine.fresh = seconds >= DECK_SECONDS  # as users' processes are; a short run pays for no start
        self.seed = seed
        self.seconds = seconds
        self.outcome = Outcome(seed)
        self.witness = Witness(self.outcome)
        machine.environment |= {
            "GT_MARK_SECONDS": str(MARK_SECONDS),
            "GT_WORKER_LEASE": str(WORKER_LEASE_SECONDS),
            "GT_LEASE": str(LEASE_SECONDS),
            "GT_LOG_LEVEL": "info",
        }
        self.address = f"ipc://{machine.temp}/service"
        self.service = machine.command("up", "--address", self.address, "--workers", str(WORKERS))
        self.disturber = Disturber(seed, self.service, machine.temp, self.witness.dispatcher_kills)
        self.clients: dict[str, Process] = {}
        self.starts = 0
        self.idle: Counter[str] = Counter()
        """By program: how often workers were disturbed since it last made progress."""
        self.baseline: dict[str, Usage] = {}
        self.pids: set[int] = set()
        """All processes of the service."""
        self.sampled = 0.0

    def run(self) -> None:
        """The whole run. Raises `Broken`."""
        self.service.expect(f"{WORKERS} workers at")
        began = time.monotonic()
        short = min(1.0, self.seconds / DECK_SECONDS)
        rounds = 5 if short < 1 else 20
        for name in PROGRAMS:
            self.start(name, 0.0 if name == "training" else began + WARM_SECONDS * short, rounds)
        self.finish()
        self.witness.undisturbed = False
        self.baseline = self.settled({})
        self.sample()
        until = time.monotonic() + self.seconds
        for name in PROGRAMS:
            self.start(name, until, rounds)
        while time.monotonic() < until:
            self.watch(min(until, time.monotonic() + self.disturber.random.uniform(*GAP_SECONDS) * short))
            self.disturb(until, rounds)
        self.watch(until)
        self.disturber.resume(float("inf"))
        self.finish()
        self.start("training", 0.0, rounds)
        self.finish()
        self.sample()
        self.outcome.seconds = time.monotonic() - began
        left = self.settled(self.baseline)
        for name, usage in left.items():
            before = self.baseline[name]
            if usage.descriptors > before.descriptors:
                more = dict(usage.open_files - before.open_files)
                self.fail(f"{name} has {usage.descriptors} descriptors, and had {before.descriptors}: {more}")
            if usage.memory > before.memory + GROWTH[name]:
                self.fail(f"{name} has {usage.memory >> 20} MiB, and had {before.memory >> 20}")
        if files := self.mark_files():
            self.fail(f"files of marks are left: {files}")

    def close(self) -> None:
        """End the service, and look at what is left of it."""
        self.note_pids()
        if self.service.running():
            self.service.signal(signal.SIGTERM)
            try:
                status = self.service.wait()
            except AssertionError:
                self.fail("`gt up` does not end")
            else:
                if status != 0:
                    self.fail(f"`gt up` ended with status {status}")
        self.machine.close()
        for pid in self.pids:
            if not ends(pid, 1.0):
                self.fail(f"process {pid} of the service is left")
        if left := self.machine.left():
            self.fail(f"files are left: {left}")
        self.read_log()

    def fail(self, text: str) -> None:
        """Note that something did not hold."""
        self.outcome.failures.append(text)

    # programs

    def start(self, name: str, until: float, rounds: int) -> None:
        """Start one of the programs, which ends at a time of `time.monotonic`, or with 0 after one session."""
        self.starts += 1
        arguments = [name, self.address, f"{self.seed}-{self.starts}", str(until)]
        if name == "training":
            arguments.append(str(rounds))
        self.clients[name] = self.machine.start(name, [sys.executable, "-c", LAUNCH, *arguments])
        self.idle[name] = 0

    def watch(self, until: float) -> None:
        """Read what the programs say, and measure, until a time. Raises `Broken` if a program or the service has ended."""
        while (now := time.monotonic()) < until:
            self.disturber.resume(now)
            for name, client in self.clients.items():
                running = client.running()
                self.read(name, client)
                if not running:
                    self.ended(name, client)
            if not self.service.running():
                raise Broken("`gt up` has ended")
            if now - self.sampled >= SAMPLE_SECONDS:
                self.sampled = now
                self.sample()
            time.sleep(min(0.05, max(0.0, until - time.monotonic())))

    def finish(self) -> None:
        """Wait for all programs to end."""
        deadline = time.monotonic() + 2 * HANG_SECONDS
        while any(client.running() for client in self.clients.values()):
            if time.monotonic() > deadline:
                left = [name for name, client in self.clients.items() if client.running()]
                raise Broken(f"{left} did not end in time")
            self.watch(time.monotonic() + 0.1)
        for name, client in self.clients.items():
            self.read(name, client)
            self.ended(name, client)
        self.clients.clear()

    def ended(self, name: str, client: Process) -> None:
        """A program has ended. Raises `Broken` if it did not come to its end."""
        status = client.wait()
        if status != 0 or not any(said_in(line).get("kind") == "done" for line in client.lines[-3:]):
            text = "\n".join(client.lines[-80:])
            raise Broken(f"the program {name!r} ended with status {status}:\n{text}")

    def disturb(self, until: float, rounds: int) -> None:
        """Draw something, and do it."""
        kind = self.disturber.next_kind()
        deadline = time.monotonic() + HANG_SECONDS
        while kind in OF_WORKERS and max(self.idle.values()) >= MAX_IDLE_LOSSES and time.monotonic() < deadline:
            self.watch(time.monotonic() + 0.1)
        if time.monotonic() >= until or not all(client.running() for client in self.clients.values()):
            return
        self.note_pids()
        self.outcome.log.append(f"{time.strftime('%H:%M:%S')} {kind}")
        victim = self.disturber.disturb(kind, list(self.clients.values()))
        if victim is not None:
            name = victim.name
            victim.wait()
            victim.gather()
            self.read(name, victim)
            victim.close()
            self.start(name, until, rounds)
        elif kind in OF_WORKERS:
            self.idle.update(list(self.clients))

    def read(self, name: str, client: Process) -> None:
        """Look at what a program has said since the last look."""
        for line in client.gather():
            if self.witness.hear(name, line):
                self.idle[name] = 0

    # the service

    def note_pids(self) -> None:
        """Note the processes of the service."""
        if self.service.running():
            self.pids |= {self.service.pid, *(each.pid for each in psutil.Process(self.service.pid).children())}

    def usage(self) -> dict[str, Usage]:
        """What the daemons use now."""
        processes = {"supervisor": [psutil.Process(self.service.pid)]}
        processes |= {room: self.disturber.daemons(room) for room in ("dispatcher", "worker")}
        found: dict[str, Usage] = {}
        for name, each in processes.items():
            for process in each:
                try:
                    files = open_files(process.pid)
                    usage = Usage(process.memory_info().rss, files.total(), files)
                except (psutil.Error, FileNotFoundError):
                    continue  # it has just ended
                most = found.setdefault(name, usage)
                most.memory = max(most.memory, usage.memory)
                if usage.descriptors > most.descriptors:
                    most.descriptors, most.open_files = usage.descriptors, usage.open_files
        return found

    def sample(self) -> None:
        """Measure the daemons."""
        if self.baseline:
            for name, usage in self.usage().items():
                self.outcome.samples.setdefault(name, []).append(usage)

    def settled(self, before: dict[str, Usage]) -> dict[str, Usage]:
        """What the daemons use when all workers are there and no program; it waits for that, and for no more descriptors than
        there were `before`, or at first for a calm second in which no worker has memory of a client."""
        deadline = time.monotonic() + QUIET_SECONDS
        calm_since = 0.0
        while True:
            now, found = time.monotonic(), self.usage()
            if before:
                more = any(found[name].descriptors > before[name].descriptors for name in before)
            else:
                more = CLIENT_MEMORY in found["worker"].open_files
            calm = len(self.disturber.joined()) == WORKERS and not self.mark_files() and not more
            calm_since = (calm_since or now) if calm else 0.0
            if (calm and now - calm_since >= (0.0 if before else 1.0)) or now > deadline:
                return found
            time.sleep(0.1)

    def mark_files(self) -> list[str]:
        """The files of marks in the service's folder."""
        found = [path for folder in self.machine.temp.glob("gt-*/marks") for path in folder.rglob("*-*")]
        return sorted(str(path.relative_to(self.machine.temp)) for path in found)

    def read_log(self) -> None:
        """Count what the log of the service says, and find errors in it."""
        outcome = self.outcome
        self.service.gather()
        killed = {
            f"client {number}"
            for number in re.findall(r"client (\d+) left: its process ended", "\n".join(self.service.lines))
        }
        for line in self.service.lines:
            outcome.rewinds += "goes back, and is client" in line or "comes back from the dispatcher" in line
            outcome.recoveries += "goes on from mark" in line
            unkept = re.search(r"(client \d+) has no marks", line)  # the memory of one that was killed is gone
            if "Traceback" in line or " ERROR " in line or (unkept is not None and unkept[1] not in killed):
                self.fail(f"the log of the service says: {line}")
        outcome.log += self.service.lines
        outcome.disturbances = self.disturber.counts


def open_files(pid: int) -> Counter[str]:
    """To what the descriptors of a process lead, without numbers. Raises `FileNotFoundError` when it has ended."""
    found: Counter[str] = Counter()
    for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found[_NUMBERS.sub("N", str(entry.readlink()))] += 1
    return found


def soak(seconds: float, seed: int) -> Outcome:
    """Soak a service for so many seconds."""
    machine = Machine()
    try:
        run = SoakRun(machine, seconds, seed)
        try:
            run.run()
        except (Broken, AssertionError) as error:
            run.fail(str(error))
        finally:
            run.close()
        return run.outcome
    finally:
        machine.close()
        machine.remove()
