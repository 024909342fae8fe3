"""Hosts of one machine: each is a set of namespaces, with a network, a name, processes and shared memory of its own.

All are joined by a bridge, and what each sends and gets can be limited (tc tbf). A host cannot read another's memory, nor see its
processes. Everything ends with the process that made it. Needs root and iproute2; latency is that of the kernel.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import psutil

NETWORK: Final = "10.89.0"
KEPT: Final = ["unshare", "--kill-child", "--fork", "--net", "--uts", "--ipc", "--pid", "--mount", "--mount-proc"]
READY: Final = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready && exec cat"


def missing() -> str:
    """What this machine lacks for hosts of its own; empty if nothing."""
    if os.geteuid() != 0:
        return "only root makes namespaces"
    for command in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(command) is None:
            return f"{command} is not installed"
    tried = subprocess.run(
        [*KEPT, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else f"no namespaces: {tried.stderr.decode().strip()}"


class NetworkHost:
    """One host. Processes that are started with `prefix` before their command are on it."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.address = f"{NETWORK}.{number + 1}"
        self.holder = subprocess.Popen(
            [*KEPT, "sh", "-c", f"hostname {name} && {READY}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n"
        self.first = psutil.Process(self.holder.pid).children()[0].pid
        """Its process 1, with which all others of it end."""

    @property
    def prefix(self) -> list[str]:
        return [
            "nsenter",
            "--target",
            str(self.first),
            "--net",
            "--uts",
            "--ipc",
            "--pid",
            "--mount",
            f"--wd={Path.cwd()}",
        ]

    def run(self, *command: str) -> str:
        """What a command prints there."""
        return subprocess.run([*self.prefix, *command], check=True, stdout=subprocess.PIPE, text=True).stdout

    def configure(self, *command: str) -> None:
        """Run a command on its network alone, with the processes of this machine."""
        subprocess.run(["nsenter", "--target", str(self.first), "--net", *command], check=True)

    def traffic(self) -> tuple[int, int]:
        """The bytes that it has got and sent over the network."""
        line = next(line for line in self.run("cat", "/proc/net/dev").splitlines() if "eth0:" in line)
        figures = line.partition(":")[2].split()
        return int(figures[0]), int(figures[8])

    def end(self) -> None:
        """End all of its processes at once, as if it lost power."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, 9)
        assert self.holder.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.holder.stdin.close()
        self.holder.wait()
        if self.holder.stdout is not None:
            self.holder.stdout.close()


class NetworkHosts:
    """As many hosts, on one bridge, which has a namespace of its own. `rate` limits what each sends and gets: 1gbit."""

    def __init__(self, count: int, rate: str = "", names: list[str] | None = None) -> None:
        self.hub = NetworkHost(250, "hub")
        self.hub.configure("ip", "link", "add", "bridge", "type", "bridge")
        self.hub.configure("ip", "link", "set", "bridge", "up")
        self.hosts = [NetworkHost(number, names[number] if names else f"host{number}") for number in range(count)]
        for host in self.hosts:
            self._join(host)
        if rate:
            self.limit(rate)

    def _join(self, host: NetworkHost) -> None:
        port = f"port{host.number}"
        self.hub.configure("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.first))
        self.hub.configure("ip", "link", "set", port, "master", "bridge", "up")
        host.configure("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.configure("ip", "link", "set", "eth0", "up")

    def limit(self, rate: str) -> None:
        """Limit what each host sends and gets from here on. Bursts are shorter than a probe of a link."""
        for host in self.hosts:
            limited = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "20ms"]
            host.configure("tc", "qdisc", "replace", "dev", "eth0", *limited)
            self.hub.configure("tc", "qdisc", "replace", "dev", f"port{host.number}", *limited)

    def cut(self, host: NetworkHost) -> None:
        """Take a host's link down."""
        self.hub.configure("ip", "link", "set", f"port{host.number}", "down")

    def mend(self, host: NetworkHost) -> None:
        self.hub.configure("ip", "link", "set", f"port{host.number}", "up")

    def close(self) -> None:
        for host in (*self.hosts, self.hub):
            host.end()
