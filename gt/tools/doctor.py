"""`gt doctor`: what on this machine prevents GT from working, or from working well, and what to do about it.

Every check has a time limit, and whatever may block (a driver, a service) is asked in a separate process. Part of the public
face, because the self-test starts sessions. No check changes anything.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from gt.sharding.spelling import nearest

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"
CHECK_TIMEOUT_SECONDS: Final = 20.0
"""The time limit of a check, in seconds."""
MIN_OPEN_FILES: Final = 1024
"""The number of open files that a dispatcher with a few dozen peers needs."""
MAX_SOCKET_PATH_BYTES: Final = 107
"""The longest path of a Unix socket, in bytes."""
ENVIRONMENT_VARIABLES: Final = (
    "GT_BATCH_SIZE", "GT_BUILD_NATIVE", "GT_CACHE", "GT_CONFIG", "GT_CPU_SPILL_THRESHOLD", "GT_GRAPHS",
    "GT_INSTRUCTION_LOG", "GT_INSTRUCTION_LOG_DATA", "GT_INSTRUCTION_LOG_SIZE", "GT_KEY", "GT_KEYS", "GT_LEASE", "GT_LOG_FORMAT",
    "GT_LOG_LEVEL", "GT_MARK_SECONDS", "GT_MEMORY_POOL_SIZE", "GT_MOVED_TO", "GT_NATIVE", "GT_NCCL",
    "GT_NVLINK_GROUP_SIZE", "GT_NVTX", "GT_OPS", "GT_PEER_TIMEOUT", "GT_PREFETCH_BUFFER_SIZE", "GT_PRIORITY", "GT_RECOVERY",
    "GT_REGISTERED_MEMORY", "GT_RESEND_BYTES", "GT_RESTARTS", "GT_SHARED_MEMORY", "GT_SNAPSHOTS", "GT_START_TIMEOUT",
    "GT_SYNC", "GT_THREADS", "GT_WEIGHT", "GT_WORKER_LEASE",
)  # fmt: skip
"""The environment variables that GT reads, or sets for programs."""


class Finding(NamedTuple):
    """One line: `status` is 'ok', 'note' or 'problem', `advice` what to do about it."""

    check: str
    status: str
    found: str
    advice: str = ""


def python() -> Iterator[Finding]:
    """The interpreter and the system."""
    yield Finding("python", OK, f"{platform.python_version()}, {sys.executable}")
    if not sys.platform.startswith("linux"):
        yield Finding("system", PROBLEM, platform.platform(), "GT runs on Linux")
    else:
        yield Finding("system", OK, platform.platform())


def packages() -> Iterator[Finding]:
    """What GT depends on, with its lower bounds."""
    from importlib.metadata import PackageNotFoundError, requires, version

    try:
        wanted = requires("gt-tensor") or []
    except PackageNotFoundError:
        import tomllib

        project = Path(__file__).parent.parent / "pyproject.toml"
        if not project.is_file():
            yield Finding("packages", NOTE, "gt-tensor is not installed, so its bounds are not known", "pip install it")
            return
        wanted = tomllib.loads(project.read_text())["project"]["dependencies"]
    found, missing = [], []
    for requirement in wanted:
        match = re.match(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?", requirement)
        if match is None or "extra ==" in requirement:
            continue
        name, least = match[1], match[2] or "0"
        try:
            here = version(name)
        except PackageNotFoundError:
            missing.append(f"{name} is missing")
            continue
        found.append(f"{name} {here}")
        if _numbers(here) < _numbers(least):
            missing.append(f"{name} is {here}, older than {least}")
    if missing:
        yield Finding("packages", PROBLEM, "; ".join(missing), "pip install --upgrade gt-tensor, or these by hand")
    yield Finding("packages", OK, ", ".join(found))
    try:
        yield Finding("compression", OK, f"lz4 {version('lz4')}, for links between hosts")
    except PackageNotFoundError:
        yield Finding("compression", OK, "no lz4: links between hosts send their pieces as they are (extra: compress)")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def client_code() -> Iterator[Finding]:
    """Which form of the client's hot modules a program imports."""
    from gt.native.finder import choice

    found = choice()
    if found.stale:
        yield Finding("client", NOTE, found.reason, "make native compiles them anew, GT_NATIVE=0 leaves them aside")
    else:
        yield Finding("client", OK, found.reason)


def devices() -> Iterator[Finding]:
    """GPUs: driver, CUDA, CuPy and NCCL, examined in another process."""
    ended = ask(
        "import json; from gt.worker.base.backend import diagnose; print(json.dumps(diagnose()))",
        CHECK_TIMEOUT_SECONDS - 5,
    )
    driver = Path("/proc/driver/nvidia/version")
    if isinstance(ended, str):
        yield Finding(
            "gpu", PROBLEM, f"asking for GPUs failed: {ended}", "see whether nvidia-smi answers; restart the driver"
        )
        return
    reason, told = ended.pop("reason"), ended.pop("nvml", [])
    said = ", ".join(f"{key} {value}" for key, value in ended.items() if value)
    if not reason:
        yield Finding("gpu", OK, said)
        yield from _health(told)
    elif driver.is_file():
        yield Finding(
            "gpu", PROBLEM, f"there is a driver, but {reason}",
            "pip install gt-tensor[cuda12], or [cuda13] for a driver of CUDA 13; update a driver that is too old",
        )  # fmt: skip
    else:
        yield Finding("gpu", OK, f"none: {reason}; workers compute with NumPy")


def _health(told: list[dict[str, Any]]) -> Iterator[Finding]:
    """What NVML reports about each GPU."""
    for number, gpu in enumerate(told):
        name = f"cuda:{number}"
        if "reason" in gpu:
            yield Finding(
                "gpu",
                NOTE,
                f"no temperature or power of {name}: {gpu['reason']}",
                "pip install nvidia-ml-py: gt top shows them"
                if gpu["reason"].startswith("ModuleNotFoundError")
                else "see whether nvidia-smi answers: both need the driver's libnvidia-ml.so.1, which containers may lack",
            )
        elif gpu["errors"] > 0:
            yield Finding(
                "gpu", PROBLEM, f"{name} has had {gpu['errors']} memory errors that could not be corrected",
                "take it out of service, or nvidia-smi --gpu-reset; nvidia-smi -q -d ECC says more",
            )  # fmt: skip
        else:
            slowed = f", slowed down by {', '.join(gpu['slowed'])}" if gpu["slowed"] else ""
            yield Finding("gpu", OK, f"{name}: {gpu['temperature']} °C, {gpu['power'] / 1000:.0f} W{slowed}")


def memory() -> Iterator[Finding]:
    """Memory, and what processes need to share it."""
    import psutil

    from gt.daemon.host import memory_limit
    from gt.wire.shared_memory.memfd import SHARED_PAGES_FILE

    limit, free = memory_limit(), psutil.virtual_memory().available
    text = f"{_size(limit)} may be used, {_size(free)} available on the machine"
    if free < 1 << 30:
        yield Finding("memory", NOTE, text, "less than 1 GB is free: end something, or expect OutOfMemory errors")
    else:
        yield Finding("memory", OK, text)
    try:
        os.close(os.memfd_create("gt-doctor", os.MFD_CLOEXEC))
        text = "memfd works: large tensors are not copied between processes"
        if "[never]" in (SHARED_PAGES_FILE.read_text("ascii") if SHARED_PAGES_FILE.exists() else ""):
            advice = f"echo advise > {SHARED_PAGES_FILE}: with large pages puts and fetches take a fifth less time"
            yield Finding("shared memory", NOTE, text, advice)
        else:
            yield Finding("shared memory", OK, text)
    except (OSError, AttributeError) as error:
        yield Finding(
            "shared memory", NOTE, f"memfd does not work: {error}",
            "large tensors go through sockets, which is slower; a container may forbid memfd_create",
        )  # fmt: skip
    shm = Path("/dev/shm")  # noqa: S108 — only looked at
    if shm.is_dir():
        room = os.statvfs(shm)
        yield Finding(str(shm), OK, f"{_size(room.f_frsize * room.f_bavail)} free (GT does not need it)")


def files() -> Iterator[Finding]:
    """Open files, and the places of sockets and logs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_OPEN_FILES:
        yield Finding(
            "open files",
            PROBLEM if soft < 256 else NOTE,
            f"{soft} (hard limit {hard})",
            f"ulimit -n {4 * MIN_OPEN_FILES}",
        )
    else:
        yield Finding("open files", OK, f"{soft} (hard limit {hard})")
    folder = tempfile.gettempdir()
    path = f"{folder}/gt-12345678/dispatcher-fanout"
    if len(path) > MAX_SOCKET_PATH_BYTES:
        yield Finding(
            "temporary files", PROBLEM, f"{folder} is too long for a Unix socket", "set TMPDIR to a short path"
        )
    elif not os.access(folder, os.W_OK):
        yield Finding("temporary files", PROBLEM, f"{folder} cannot be written", "set TMPDIR to a folder of your own")
    else:
        yield Finding("temporary files", OK, folder)


def processors() -> Iterator[Finding]:
    """Cores, limits on them, and threads."""
    import numpy as np

    cores, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _quota()
    text = f"{cores} of {all_cores} cores" + (f", of which a control group allows {quota:g}" if quota else "")
    load = os.getloadavg()[0]
    if quota and quota < cores - 0.5:
        advice = f"set GT_THREADS={max(1, int(quota))}: workers count {cores} cores and would be throttled"
        yield Finding("cores", NOTE, text, advice)
    elif load > 1.5 * cores:
        yield Finding("cores", NOTE, f"{text}, load {load:.1f}", "others use this machine: timings will vary")
    else:
        yield Finding("cores", OK, text)
    try:
        built: Any = np.show_config(mode="dicts")
        blas = built["Build Dependencies"]["blas"]
        said = f"{blas['name']} {blas.get('version', '')}".strip()
    except (KeyError, TypeError):
        said = "not known"
    threads = os.environ.get("GT_THREADS")
    share = f"GT_THREADS={threads}" if threads else "cores / workers"
    yield Finding("BLAS", OK, f"{said}; workers give it one thread, and compute in {share} of their own")


def _quota() -> float:
    """The cores that a control group allows; 0 for all."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return 0.0  # no group, or no limit ("max")


def network() -> Iterator[Finding]:
    """ZeroMQ, encryption, and the port at which a service listens by default."""
    from gt.wire.transport import facts

    known = facts()
    yield Finding("ZeroMQ", OK, f"libzmq {known['libzmq']}, pyzmq {known['pyzmq']}")
    if known["curve"]:
        yield Finding("libsodium", OK, "ZeroMQ can encrypt (CURVE)")
    else:
        yield Finding(
            "libsodium",
            NOTE,
            "ZeroMQ was built without it",
            "TCP addresses need it, for keys: pip install pyzmq's own wheel",
        )
    yield from _default_port()


def _default_port() -> Iterator[Finding]:
    import socket

    from gt.daemon.host import DEFAULT_ADDRESS

    port = int(DEFAULT_ADDRESS.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            yield Finding("port", OK, f"{port} is free, for gt up --address {DEFAULT_ADDRESS}")
            return
        except OSError:
            pass
    found = service(DEFAULT_ADDRESS, 2.0)
    if isinstance(found, dict):
        yield Finding("port", OK, f"{port} is taken by a GT service with {found['workers']} workers")
    else:
        yield Finding("port", NOTE, f"{port} is taken by {_owner(port)}", "gt up --address tcp://127.0.0.1:OTHER")


def _owner(port: int) -> str:
    import psutil

    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr[1] == port and each.pid:
                return f"{psutil.Process(each.pid).name()}, process {each.pid}"
    except psutil.Error:
        pass
    return "another user's process"


def clocks() -> Iterator[Finding]:
    """Whether the wall clock runs as the monotonic clock does."""
    start = time.time() - time.monotonic()
    time.sleep(0.25)
    stepped = time.time() - time.monotonic() - start
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text("ascii").strip()
    except OSError:
        source = "not known"
    if abs(stepped) > 0.005:
        text = f"the wall clock moved by {stepped * 1000:+.1f} ms against the monotonic one in 0.25 s"
        yield Finding("clock", NOTE, text, "dates in logs and traces are off: see to chrony or ntpd")
    else:
        yield Finding("clock", OK, f"steady, source {source}")


def environment() -> Iterator[Finding]:
    """GT's environment variables."""
    said = {name: value for name, value in os.environ.items() if name.startswith("GT_")}
    for name in sorted(set(said) - set(ENVIRONMENT_VARIABLES)):
        near = nearest(name, ENVIRONMENT_VARIABLES)
        if near:
            yield Finding("environment", NOTE, f"{name} is nothing that GT reads", f"did you mean {near}?")
    if said.get("GT_CONFIG"):
        from gt.errors import GTError
        from gt.sharding.config import load

        try:
            load(said["GT_CONFIG"])
        except GTError as error:
            yield Finding("environment", PROBLEM, f"GT_CONFIG: {error}", "mend the file, or unset GT_CONFIG")
    known = {name: said[name] for name in ENVIRONMENT_VARIABLES if name in said}
    yield Finding("environment", OK, ", ".join(f"{name}={value}" for name, value in known.items()) or "nothing set")


_SELF_TEST_PROGRAM: Final = """
import json, sys, time
begun = time.perf_counter()
import numpy as np, gt
imported = time.perf_counter() - begun
begun = time.perf_counter()
gt.connect("inproc", workers=2) if sys.argv[1] == "inproc" else gt.init(workers=1)
a = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
w = gt.tensor(a, requires_grad=True)
loss = (w @ gt.tensor(a.T)).relu().sum()
loss.backward()
m = (a @ a.T > 0).astype(np.float32)
right = np.allclose(loss.item(), (a @ a.T * m).sum(), rtol=1e-4) and np.allclose(w.grad.numpy(), m @ a, atol=1e-3)
gt.disconnect()
print(json.dumps({"right": bool(right), "seconds": time.perf_counter() - begun, "import": imported}))
"""


def self_test(kind: str) -> Iterator[Finding]:
    """Start a service, compute a loss and a gradient, compare with NumPy."""
    name, what = ("in this process", "inproc") if kind == "inproc" else ("with local daemons", "a local service")
    without = {key: value for key, value in os.environ.items() if key not in ("GT_CONFIG", "GT_INSTRUCTION_LOG")}
    ended = ask(_SELF_TEST_PROGRAM, CHECK_TIMEOUT_SECONDS - 5, kind, environment=without)
    if isinstance(ended, str):
        advice = f"GT_LOG_LEVEL=debug python -c 'import gt; print(gt.ones(3))' says more of {what}"
        yield Finding("self-test", PROBLEM, f"{name}: {ended}", advice)
    elif not ended["right"]:
        yield Finding(
            "self-test", PROBLEM, f"{name}: other values than NumPy's", "run the tests: make test; please report it"
        )
    else:
        yield Finding("self-test", OK, f"{name}: right, in {ended['seconds']:.2f} s (import {ended['import']:.2f} s)")


def service_at(address: str) -> Iterator[Finding]:
    """The service at an address: whether it answers, how soon, and its clock."""
    if not address.startswith(("tcp://", "ipc:///")):
        yield Finding("service", PROBLEM, f"{address} is no address", "say tcp://127.0.0.1:PORT or ipc:///PATH")
        return
    patience = 5.0
    found = service(address, patience)
    if isinstance(found, str):
        why = f"no answer within {patience:g} s" if found.startswith("TimeoutError") else found
        yield Finding("service", PROBLEM, f"{address}: {why}", f"start one: gt up --address {address}")
        return
    spares = f", {_count(found['spares'], 'spare')}" if found["spares"] else ""
    peers = f"{_count(found['workers'], 'worker')}{spares}, {_count(found['clients'], 'client')}"
    text = f"{address}: {peers}, answers in {found['seconds'] * 1000:.1f} ms"
    if not found["workers"]:
        yield Finding("service", PROBLEM, text, f"no worker has joined: gt worker --address {address}")
    else:
        yield Finding("service", OK, text)
    if abs(found["skew"]) > 0.5:
        text = f"the service's clock is {found['skew']:+.2f} s from this one's"
        yield Finding("clock skew", NOTE, text, "dates in logs will not fit together: see to chrony or ntpd")
    else:
        yield Finding("clock skew", OK, f"{found['skew'] * 1000:+.1f} ms to the service")


_SERVICE_PROGRAM: Final = """
import json, sys, time
from gt.client.session.socket_link import SocketLink
from gt.client.session.session import Session
from gt.daemon.host import host_facts
session = Session(SocketLink(sys.argv[1]), sys.argv[1], idle_flush=False)
before = time.time()
session.open({**host_facts(), "bulk": b""}, float(sys.argv[2]), float(sys.argv[2]))
after = time.time()
begun = time.perf_counter()
found = session.inquire("statistics", float(sys.argv[2]))
seconds = time.perf_counter() - begun
skew = session.facts.get("wall", after) - (before + after) / 2
counts = {"workers": found["workers"], "spares": found["spares"], "clients": found["clients"] - 1}
print(json.dumps({**counts, "seconds": seconds, "skew": skew}))
session.close()
"""


def _count(number: int, one: str) -> str:
    return f"{number} {one if number == 1 else f'{one}s'}"


def service(address: str, timeout: float) -> dict[str, Any] | str:
    """What the service at an address reports about itself, or why it reports nothing."""
    return ask(_SERVICE_PROGRAM, timeout + 4, address, str(timeout))


def ask(code: str, timeout: float, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any] | str:
    """The JSON that a program prints in a separate process, or why there is none."""
    with subprocess.Popen(  # noqa: S603 — this very interpreter, with code from above
        [sys.executable, "-P", "-c", code, *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"no answer within {timeout:g} s"
    try:
        found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = err.strip().splitlines()
        return lines[-1] if lines else f"it ended with status {process.returncode}"
    return found


def examine(address: str | None = None) -> list[Finding]:
    """All findings. Checks run in parallel; tests that start services run after the others."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", python), ("packages", packages), ("client", client_code), ("gpu", devices), ("memory", memory),
        ("files", files), ("cores", processors), ("network", network), ("clock", clocks), ("environment", environment),
    ]  # fmt: skip
    if address is not None:
        checks.append(("service", lambda: service_at(address)))
    tests: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("self-test", lambda: self_test("inproc")), ("self-test", lambda: self_test("local"))
    ]  # fmt: skip
    return [*_findings_of(checks), *_findings_of(tests)]


def _findings_of(
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]], limit: float = CHECK_TIMEOUT_SECONDS
) -> list[Finding]:
    """The findings of some checks, in order. A check that fails or takes too long is a finding itself."""
    found: list[list[Finding]] = [[] for _ in checks]
    threads = []
    for (name, check), mine in zip(checks, found, strict=True):
        thread = threading.Thread(target=_run, args=(name, check, mine), daemon=True)
        thread.start()
        threads.append(thread)
    until = time.monotonic() + limit
    for thread, (name, _), mine in zip(threads, checks, found, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            mine.append(
                Finding(name, PROBLEM, f"no answer within {limit:g} s", "something here hangs: is a disk gone?")
            )
    return [finding for mine in found for finding in mine]


def _run(name: str, check: Callable[[], Iterator[Finding]], found: list[Finding]) -> None:
    try:
        found.extend(check())
    except Exception as error:  # noqa: BLE001 — a check that cannot be made is what it has found
        found.append(Finding(name, PROBLEM, f"{type(error).__name__}: {error}", "this check could not be made"))


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
