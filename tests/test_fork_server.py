"""What `fork_server.py` forks is to its parent, and in itself, what `subprocess.Popen` would have started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from fork_server import SETTINGS, ForkingPopen, settings_of

REPORT = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "name": __name__, "file": globals().get("__file__"),
    "environment": dict(os.environ), "folder": os.getcwd(), "parent": os.getppid(), "group": os.getpgid(0),
    "leads": os.getsid(0) == os.getpid(), "threads": len(os.listdir("/proc/self/task")), "umask": os.umask(0),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "flags": os.get_blocking(0), "heard": input(),
    "signals": {n: str(signal.getsignal(n)).split(" at ")[0] for n in (1, 2, 10, 13, 15, 17)},
    "descriptors": [n for n in range(3, 600) if os.path.exists(f"/proc/self/fd/{n}")],
}), flush=True)
print("and more", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
ENVIRONMENT = {**os.environ, **SETTINGS, "GT_LOG_LEVEL": "error"}


def report(kind: type[subprocess.Popen[Any]], folder: Path, **options: Any) -> tuple[dict[str, Any], list[str], int]:
    """What a process says of itself, its other lines, and its status."""
    read, write = os.pipe()
    with kind(
        [sys.executable, "-c", REPORT, "7", "é"], env=ENVIRONMENT, cwd=folder, text=True, pass_fds=[read],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    ) as child:  # fmt: skip
        os.close(write)
        os.close(read)
        first, *rest = child.communicate("a line\n", timeout=60)[0].splitlines()
        said = json.loads(first)
        assert said["descriptors"] == [read], "it has what is passed, and nothing else"
    assert getattr(child, "forked", False) == (kind is ForkingPopen)
    return said, rest, child.returncode


@pytest.mark.process
@pytest.mark.parametrize("alone", [False, True], ids=["same session", "own session"])
def test_a_forked_process_is_as_one_that_is_started(alone: bool, tmp_path: Path) -> None:
    """Arguments, environment, folder, streams, descriptors, signals, session, parent and status."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        forked = report(ForkingPopen, tmp_path, start_new_session=alone)
        started = report(subprocess.Popen, tmp_path, start_new_session=alone)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for said in (forked[0], started[0]):
        del said["descriptors"]
        said["group"] = said["group"] == os.getpgid(0)
    assert {name: (said, started[0][name]) for name, said in forked[0].items() if said != started[0][name]} == {}
    assert forked[1:] == started[1:] == (["and more"], 7)
    assert forked[0]["parent"] == os.getpid()


@pytest.mark.process
def test_it_ends_by_a_signal_and_is_called_by_its_command() -> None:
    """Its parent learns of the end as of any child's."""
    command = [sys.executable, "-c", "print('up', flush=True); input()", "--spare"]
    child = ForkingPopen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.forked
        assert child.stdout.readline() == b"up\n"
        assert psutil.Process(child.pid).cmdline()[1:] == command[1:]
        assert child.pid in {each.pid for each in psutil.Process().children()}
        assert child.poll() is None
        child.kill()
        assert child.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ([sys.executable, "-c", ""], {"OPENBLAS_NUM_THREADS": "2"}),
        ([sys.executable, "-c", ""], {"GT_NATIVE": "never"}),
        ([sys.executable, "-c", ""], {"PYTHONHASHSEED": "1"}),
        ([sys.executable, "-W", "error", "-c", ""], {}),
        (["true"], {}),
    ],
    ids=["threads", "forms", "hashes", "options", "others"],
)
def test_what_would_be_loaded_otherwise_is_started(command: list[str], more: dict[str, str]) -> None:
    """Settings that are read while modules are loaded, other options, and other programs."""
    with ForkingPopen(command, env={**ENVIRONMENT, **more}) as child:
        assert not child.forked
        assert child.wait(60) == 0


def test_settings_are_all_variables_but_those_read_later() -> None:
    """A variable that nobody knows keeps a process from being forked."""
    assert settings_of({"GT_LOG_LEVEL": "info", "GT_NATIVE": "off", "TMPDIR": "/", "NEW": ""}) == {
        "GT_NATIVE": "off",
        "NEW": "",
    }
