"""Bandwidth of collectives between local workers, beside PyTorch's gloo and the speed of a memory copy, in one run.

    python benchmarks/collectives.py [--rounds 5] [--workers 2,4] [--sizes 4096,1048576,67108864]
        [--listen 'tcp://127.0.0.1:*'] [--json FILE]

Each collective runs through real worker processes: this program speaks to them as a dispatcher does, with a plan that is
nothing but the same move many times over, so that what is measured is the way between workers. PyTorch's gloo does the
same number of collectives between as many processes with one thread each. They take turns; figures are medians. A size
is what one worker holds of the whole value; bandwidth is that size over the time of one collective. Pieces go through
shared memory unless GT_SHARED_MEMORY is 0, and then through the sockets at which workers `--listen`: with keys, if on TCP.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gt.ir.dtypes import float32
from gt.ir.hints import Hints
from gt.ir.instruction import INPUT, MOVE, OUTPUT, Instruction, Plan, Tag, ref
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import Spec, pack_spec, spec
from gt.sharding.placement import Layout, format_layout, parse_layout
from gt.wire import messages as m
from gt.wire import transport
from gt.wire.connection import SessionRouter
from gt.wire.messages import codec

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

LIMIT = 120.0
"""Seconds that workers have for anything."""
#: Each collective as a change of layout, and what gloo does of it.
COLLECTIVES = {
    "all-reduce": ("P(sum)", "R", "all_reduce"),
    "all-gather": ("S0", "R", "all_gather_into_tensor"),
    "reduce-scatter": ("P(sum)", "S0", "reduce_scatter_tensor"),
    "all-to-all": ("S0", "S1", "all_to_all_single"),
    "broadcast": ("@0", "R", "broadcast"),
}
CLIENT = 1
NETWORK_SPEED, NETWORK_NANOSECONDS = 1_250_000_000, 100_000
"""The links between hosts that workers are told of: bandwidth in bytes/s and latency in nanoseconds."""


class Workers:
    """Local workers, and the dispatcher's side of their connections. `listen` is their option `--listen`, if they have one.

    `places` has for each worker on a host of its own what its command begins with, and where it listens. Ranks then go by host,
    and all-reduces may be hierarchical.
    """

    def __init__(self, count: int, listen: str = "", places: Sequence[tuple[list[str], str]] = ()) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="gt-bench-")
        self.control = SessionRouter(f"ipc://{self.folder.name}/control", transport.MAX_FRAME_BYTES)
        self.bulk = SessionRouter(f"ipc://{self.folder.name}/bulk", transport.MAX_FRAME_BYTES)
        command = [
            sys.executable,
            "-c",
            "from gt.cli import main; main()",
            "worker",
            "--device",
            "cpu",
            "--log-level",
            "warning",
        ]
        self.processes = [
            subprocess.Popen(
                [
                    *before,
                    *command,
                    "--address",
                    transport.endpoint(self.control.socket),
                    *(["--listen", where] if where else []),
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            for before, where in places or [([], listen)] * count
        ]
        machines: list[str] = []
        self.count = count
        self.secret = os.urandom(transport.KEY_BYTES)
        self.peers: list[bytes] = []
        self.addresses: list[str] = []
        self.order = 0
        self.plan = 0
        while len(self.peers) < count:
            peer, message = self.hear()
            if isinstance(message, m.Hello) and message.role == "worker":
                self.peers.append(peer)
                self.addresses.append(str(message.facts["address"]))
                machines.append(str(message.facts["machine"]))
                facts = {"bulk_address": transport.endpoint(self.bulk.socket), "peer_secret": self.secret}
                self.say(peer, m.Welcome(len(self.peers) - 1, facts))
                assert self.bulk.socket.poll(int(LIMIT * 1000))
                assert self.bulk.receive() is None, "it only connects"
        members = sorted(range(count), key=machines.__getitem__)
        numbers = {machine: number for number, machine in enumerate(sorted(set(machines)))}
        far = [[numbers[machines[member]] for member in members], [NETWORK_SPEED, NETWORK_NANOSECONDS]]
        body = [["workers"], [count], members, [[1] * count], [], *(far if len(numbers) > 1 else [])]
        self.tell(m.DefineMesh(1, body, [self.addresses[member] for member in members]))

    def hear(self) -> tuple[bytes, Any]:
        """The next message of any worker; heartbeats are answered, so that nobody thinks us dead."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for router in (self.bulk, self.control):
                while (heard := router.receive()) is not None:
                    peer, frames, _ = heard
                    message = codec.decode(frames) if len(frames[0]) else m.Ping()
                    if not isinstance(message, m.Ping):
                        return peer, message
                    router.send_unnumbered(peer, [b""])
            self.control.socket.poll(1000)
        raise TimeoutError(f"no worker has said anything for {LIMIT:g} s")

    def say(self, peer: bytes, message: m.Message) -> None:
        self.control.send(peer, codec.encode(message))

    def tell(self, message: m.Message) -> None:
        for peer in self.peers:
            self.say(peer, message)

    def wait(self) -> None:
        """Until every worker has done everything up to the last order."""
        missing = set(self.peers)
        while missing:
            peer, message = self.hear()
            assert not isinstance(message, (m.Poisoned, m.Goodbye)), message
            if isinstance(message, m.Done) and message.order == self.order:
                missing.discard(peer)

    def store(self, whole: Spec, layout: Layout, values: np.ndarray[Any, Any] | None = None) -> None:
        """Tensor 1, of ones unless it has other values."""
        before = layout if "@" not in format_layout(layout) else parse_layout("R")
        self.order += 1
        data = (np.ones(whole.shape, whole.dtype.numpy) if values is None else values).tobytes()
        self.tell(m.Store(self.order, CLIENT, 1, pack_spec(whole), 1, format_layout(before), [], b"", data))
        self.wait()

    def define(self, whole: Spec, before: Layout, after: Layout, repeat: int, comm: str = "") -> int:
        """A plan that moves its input `repeat` times from one layout to the other, and keeps nothing of it. `comm` asks for an
        algorithm of all-reduces."""
        tags = (Tag((), "forward", "collectives.py:1", Hints(comm=comm)),)
        inputs = (before if "@" not in format_layout(before) else parse_layout("R"),)
        instructions, layouts = [], []
        if before != inputs[0]:
            instructions.append(Instruction(MOVE, range(1), (ref(INPUT, 0),), {}, 0))
            layouts.append(before)
        source = ref(OUTPUT, 0) if layouts else ref(INPUT, 0)
        for _ in range(repeat):
            number = len(layouts)
            instructions.append(Instruction(MOVE, range(number, number + 1), (source,), {}, 0))
            layouts.append(after)
        plan = Plan(1, (whole,), inputs, "", tags, tuple(instructions), (whole,) * len(layouts), tuple(layouts), (), ())
        self.plan += 1
        self.tell(m.DefinePlan(self.plan, pack_plan(plan)))
        return self.plan

    def run(self, plan: int) -> None:
        self.order += 1
        self.tell(m.Execute(self.order, plan, CLIENT, 100, [1], [], [], []))
        self.wait()

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        self.control.socket.close()
        self.bulk.socket.close()
        self.folder.cleanup()


def gloo(rank: int, count: int, folder: str) -> None:
    """One process of PyTorch's: does what it reads, (collective, bytes, how often), and says how long it took."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=count)
    for line in sys.stdin:
        name, nbytes, repeat = json.loads(line)
        elements = nbytes // 4
        whole, part = torch.ones(elements), torch.ones(elements // count)
        other = torch.empty_like(part)
        try:
            dist.barrier()
            start = time.perf_counter()
            for _ in range(repeat):
                _call(name, whole, part, other)
            dist.barrier()
            print(json.dumps(time.perf_counter() - start), flush=True)
        except RuntimeError as error:  # what this build of gloo cannot do
            print(json.dumps(str(error).splitlines()[0]), flush=True)


def _call(name: str, whole: Any, part: Any, other: Any) -> None:
    """One collective of PyTorch's."""
    import torch.distributed as dist

    if name == "all_reduce":
        dist.all_reduce(whole)
    elif name == "broadcast":
        dist.broadcast(whole, 0)
    else:
        target, source = {"all_gather_into_tensor": (whole, part), "all_to_all_single": (other, part)}.get(
            name, (part, whole)
        )
        getattr(dist, name)(target, source)


class Gloo:
    """As many processes of PyTorch's gloo. `prefixes` is what the commands of those on hosts of their own begin with."""

    def __init__(self, count: int, prefixes: Sequence[list[str]] = ()) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="gt-bench-")
        self.processes = [
            subprocess.Popen(
                [*before, sys.executable, __file__, "--gloo", str(rank), str(count), self.folder.name],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
                env={**os.environ, **({"GLOO_SOCKET_IFNAME": "eth0"} if before else {})},
            )
            for rank, before in enumerate(prefixes or [[]] * count)
        ]  # fmt: skip

    def run(self, name: str, nbytes: int, repeat: int) -> float:
        """Seconds of so many collectives; infinite when gloo cannot do them."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([name, nbytes, repeat]) + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes if process.stdout]
        return max(float("inf") if isinstance(answer, str) else answer for answer in answers)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


def copy_speed() -> float:
    """Bytes a second of copying 64 MiB from one array to another that has been written before."""
    source, target = np.ones(64 << 20, np.uint8), np.ones(64 << 20, np.uint8)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return source.nbytes / statistics.median(times)


def measure(count: int, sizes: list[int], rounds: int, listen: str) -> list[dict[str, Any]]:
    """One row for each collective and size."""
    workers = Workers(count, listen)
    peer = Gloo(count) if torch is not None else None
    rows = []
    try:
        for nbytes in sizes:
            whole = spec(float32, (count * 4, nbytes // 16 // count))
            repeat = max(1, min(200, (256 << 20) // nbytes))
            for name, (before, after, theirs) in COLLECTIVES.items():
                workers.store(whole, parse_layout(before))
                plan = workers.define(whole, parse_layout(before), parse_layout(after), repeat)
                ours_took, theirs_took = [], []
                for turn in range(rounds + 1):
                    start = time.perf_counter()
                    workers.run(plan)
                    ours = (time.perf_counter() - start) / repeat
                    few = max(1, repeat // 4)
                    other = peer.run(theirs, nbytes, few) / few if peer is not None else float("nan")
                    if turn:
                        ours_took.append(ours)
                        theirs_took.append(other)
                workers.tell(m.DropPlan(plan))
                rows.append(
                    {"workers": count, "collective": name, "bytes": nbytes,
                     "gt": statistics.median(ours_took), "gloo": statistics.median(theirs_took)}
                )  # fmt: skip
        before_growth = [resident(process.pid) for process in workers.processes]
        whole = spec(float32, (count * 4, (256 << 10) // 16 // count))
        workers.store(whole, parse_layout("P(sum)"))
        plan = workers.define(whole, parse_layout("P(sum)"), parse_layout("R"), 100)
        workers.run(plan)
        before_growth = [resident(process.pid) for process in workers.processes]
        for _ in range(100):
            workers.run(plan)
        grown = max(resident(p.pid) - was for p, was in zip(workers.processes, before_growth, strict=True))
        rows.append({"workers": count, "collective": "memory", "bytes": 256 << 10, "grown": grown})
    finally:
        workers.close()
        if peer is not None:
            peer.close()
    return rows


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--sizes", default="4096,1048576,67108864")
    parser.add_argument("--listen", default="", help="where workers listen to each other, such as tcp://127.0.0.1:*")
    parser.add_argument("--json", help="also write the rows here")
    parser.add_argument("--gloo", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gloo:
        gloo(int(options.gloo[0]), int(options.gloo[1]), options.gloo[2])
        return
    speed = copy_speed()
    sizes = [int(size) for size in options.sizes.split(",")]
    print(f"a copy of 64 MiB: {speed / 1e9:.2f} GB/s, {len(os.sched_getaffinity(0))} cores")
    rows = []
    for count in map(int, options.workers.split(",")):
        for row in measure(count, sizes, options.rounds, options.listen):
            rows.append(row)
            what = f"{count} workers  {row['collective']:14}  {row['bytes']:>11,} bytes"
            if "grown" in row:
                print(f"{what}  over 10,000 all-reduces a worker grew by {row['grown'] / 2**20:+.1f} MiB", flush=True)
                continue
            bandwidth = row["bytes"] / row["gt"]
            ratio = f"gloo {row['gloo'] * 1e6:9.0f} µs, GT / gloo = {row['gt'] / row['gloo']:.2f}" if torch else ""
            print(f"{what}  {row['gt'] * 1e6:9.0f} µs  {bandwidth / speed:6.3f} of a copy  {ratio}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"copy": speed, "rows": rows}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
