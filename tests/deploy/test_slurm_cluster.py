"""`gt deploy slurm` in a Slurm cluster of two nodes that this starts on this machine: make slurm-test runs it, as root.

The scripts run as they are written. A worker and the dispatcher are killed while a program trains, the job is queued again before
its time is over, and the program goes on from its snapshot.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from daemons import free_port
from folder_changes import FolderChanges
from typer.testing import CliRunner

from gt.commands.app import app

MISSING = [name for name in ("slurmctld", "slurmd", "sbatch", "srun") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.environ.get("GT_SLURM_TEST") != "1", reason="make slurm-test runs it"),
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: {', '.join(MISSING)} not found"),
    pytest.mark.skipif(getpass.getuser() != "root", reason="slurmd needs root"),
]
SECONDS = 120.0
"""The most seconds that anything takes here."""
UNWRITTEN_SECONDS = 5.0
"""The most seconds between two looks, for what Slurm writes nothing of."""

CONFIG = """
ClusterName=gt-test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
KillWait=20
ReturnToService=2
MailProg=/bin/true
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 State=UNKNOWN
PartitionName=gt Nodes=n1,n2 Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4 State=UP
"""


class Cluster:
    """Two nodes, and commands to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "spool-n1", "spool-n2"):
            (folder / name).mkdir()
        ports = {"port": free_port(), "first": free_port(), "second": free_port()}
        (folder / "slurm.conf").write_text(CONFIG.format(host=socket.gethostname(), folder=folder, **ports))
        self.environment = {
            **os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "XDG_RUNTIME_DIR": str(folder / "run"),
            "XDG_CONFIG_HOME": str(folder / "config"), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self.changes = FolderChanges(folder)
        """Of the state that Slurm writes, of its logs, and of what jobs print."""
        self.daemons: list[subprocess.Popen[bytes]] = []
        for name, *arguments in (("slurmctld",), ("slurmd", "-N", "n1"), ("slurmd", "-N", "n2")):
            with (folder / f"{name}{len(self.daemons)}.log").open("wb") as log:
                command = [str(shutil.which(name)), "-D", *arguments]
                self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    def run(self, *command: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.strip()

    def wait(self, what: str, found: Callable[[], bool]) -> None:
        """Wait until something is so. It is looked at whenever Slurm or a job has written something, and sometimes besides."""
        deadline = time.monotonic() + SECONDS
        while not found():
            left = deadline - time.monotonic()
            assert left > 0, f"not within {SECONDS:g} s: {what}; {self.logs()}"
            self.changes.wait(min(left, UNWRITTEN_SECONDS))

    def logs(self) -> str:
        """The ends of all logs of jobs."""
        return "\n".join(f"{path}: {path.read_text()[-3000:]}" for path in self.folder.glob("*.out"))

    def processes(self, word: str) -> list[psutil.Process]:
        """Processes of `gt` with this command whose command line names the cluster's folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if word in line[:4] and any(str(self.folder) in part for part in line):
                found.append(process)
        return found

    def close(self) -> None:
        self.run("scancel", "-u", "root")
        deadline = time.monotonic() + 30
        while self.run("squeue", "-h") and time.monotonic() < deadline:
            self.changes.wait(UNWRITTEN_SECONDS)
        self.changes.close()
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_program_outlives_kills_and_a_requeue(cluster: Cluster) -> None:
    cluster.wait("both nodes are idle", lambda: cluster.run("sinfo", "-h", "-o", "%T %D") == "idle 2")
    scripts, folder = cluster.folder / "scripts", cluster.folder / "service"
    made = CliRunner().invoke(
        app, ["deploy", "slurm", "--nodes", "2", "--out", str(scripts), "--folder", str(folder), "--partition", "gt"]
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    log = cluster.folder / "service.out"
    job = cluster.run("sbatch", "--parsable", "--output", str(log), str(scripts / "gt-service.sh"))
    cluster.wait("the service has an address", (folder / "address").exists)
    assert (folder.stat().st_mode & 0o777, (folder / "keys" / "user.key").stat().st_mode & 0o777) == (0o700, 0o600)
    slow = scripts / "train.py"
    slow.write_text(slow.read_text().replace("STEPS, SAVED_EVERY, NAME = 300,", "STEPS, SAVED_EVERY, NAME = 3000,"))
    program_log = cluster.folder / "program.out"

    def begin() -> str:
        return cluster.run("sbatch", "--parsable", "--output", str(program_log), str(scripts / "gt-client.sh"))

    def said(text: str) -> bool:
        return program_log.exists() and text in program_log.read_text()

    program = begin()
    cluster.wait("the program has made a step", lambda: said("step 100:"))
    assert len(cluster.processes("worker")) == 2
    cluster.processes("worker")[0].send_signal(signal.SIGKILL)
    cluster.wait("the worker is started again", lambda: len(cluster.processes("worker")) == 2)
    cluster.wait("the program goes on", lambda: said("step 400:"))
    (dispatcher,) = cluster.processes("dispatcher")
    dispatcher.send_signal(signal.SIGKILL)
    cluster.wait("another dispatcher goes on", lambda: "another one goes on" in log.read_text())
    cluster.wait("the program goes on", lambda: said("step 700:"))
    cluster.run("scancel", "--batch", "--signal=USR1", job)  # as two minutes before the time is over
    cluster.wait("the job is queued again", lambda: "the job is queued again" in log.read_text())
    cluster.wait("the job waits", lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T") == "PENDING")

    hurried: list[str] = []

    def runs_again() -> bool:
        state = cluster.run("squeue", "-h", "-j", job, "-o", "%T %r")
        if state == "PENDING BeginTime" and not hurried:
            # Slurm would let two minutes pass. A node refuses what begins in the second in which the job ended there.
            hurried.append(cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds"))
        return state.startswith("RUNNING")

    cluster.wait("the job runs again", runs_again)
    cluster.wait("the service has an address", (folder / "address").exists)
    if cluster.run("squeue", "-h", "-j", program, "-o", "%T") != "RUNNING":  # Slurm took too long: it has given up
        program = begin()
        cluster.wait("it goes on from a snapshot", lambda: said("goes on from step"))
    cluster.wait("the program ends", lambda: said("step 3000:"))
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    cluster.wait("the service has ended", lambda: not cluster.run("squeue", "-h", "-j", job))
    assert not (folder / "address").exists()
    cluster.wait("nothing is left", lambda: not cluster.processes("worker") + cluster.processes("dispatcher"))
