"""Runs the containers of manifests and of Compose files by bubblewrap, in place of Kubernetes and Docker.

A container has what its manifest says: the entrypoint and environment of the Dockerfile, arguments, volumes, a host name, a user
that is not root, a root folder that cannot be written to, and name spaces of its own for processes, users and host names. It is
started again whenever it ends, and probes and hooks run inside it. All share the network of this machine: the address of a pod is
one of loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

import gt

REPOSITORY = Path(gt.__file__).resolve().parents[1]
TIMEOUT = 40.0
RESTART_SECONDS = 0.2
"""The pause before a container is started again; a kubelet's grows from ten seconds on."""
ETC = ("alternatives", "ld.so.cache", "localtime", "nsswitch.conf")
"""What of /etc is as on this machine: no user's name, and nothing else."""
USABLE = shutil.which("bwrap") is not None and shutil.which("nsenter") is not None


@dataclass
class Image:
    """What a Dockerfile says of every container: where tini is not installed, its command runs without it."""

    dockerfile: str

    @property
    def entrypoint(self) -> list[str]:
        """The words before a container's arguments."""
        found = re.findall(r"^ENTRYPOINT (.*)$", self.dockerfile, re.MULTILINE)
        words = [str(word) for word in json.loads(found[-1])]
        return words if Path(words[0]).exists() else words[words.index("--") + 1 :]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of all targets."""
        lines = re.findall(r"^ENV (.*)$", self.dockerfile, re.MULTILINE)
        return dict(word.split("=", 1) for line in lines for word in line.split())


@dataclass
class Container:
    """One container: what it runs, as whom, with which folders of this machine where (`mounts`: inside, outside, writable)."""

    name: str
    command: list[str]
    environment: dict[str, str]
    mounts: list[tuple[str, Path, bool]]
    hosts: Mapping[str, str]
    folder: Path
    user: int = 10001
    group: int = 10001
    starts: int = 0
    lines: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    stopping: bool = False

    def run(self) -> int:
        """Run it once, to its end. Returns the exit status."""
        hosts = self.folder / f"{self.name}.hosts"
        hosts.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in self.hosts.items())
        )
        self.process = subprocess.Popen(
            [*self._sandbox(hosts), *self.command],
            env={"PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.starts += 1
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))
        return self.process.wait()

    def _sandbox(self, hosts: Path) -> list[str]:
        words = [
            "bwrap", "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-uts", "--unshare-ipc", "--as-pid-1",
            "--uid", str(self.user), "--gid", str(self.group), "--hostname", self.name, "--clearenv",
            "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr", "--ro-bind", str(hosts), "/etc/hosts",
        ]  # fmt: skip
        for name in ETC:
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in ("bin", "sbin", "lib", "lib64"):
            words += ["--symlink", f"usr/{name}", f"/{name}"]
        if Path("/sys").is_dir():
            words += ["--ro-bind", "/sys", "/sys"]
        for inside, outside, writable in sorted(self.mounts):
            words += ["--bind" if writable else "--ro-bind", str(outside), inside]
        programs = {
            REPOSITORY,
            Path(sys.prefix),
            Path(sys.base_prefix).resolve(),
            Path(sys.executable).resolve().parents[1],
        }
        for path in sorted(programs - {Path("/usr")}):
            words += ["--ro-bind", str(path), str(path)]
        for name, value in self._variables().items():
            words += ["--setenv", name, value]
        return [*words, "--remount-ro", "/", "--"]

    def _variables(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")
        }  # what runs here needs
        return {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "HOSTNAME": self.name, **kept, **self.environment}

    def first_process(self) -> psutil.Process | None:
        """Its process 1, by its number outside."""
        if self.process is None or self.process.poll() is not None:
            return None
        try:
            inner = psutil.Process(self.process.pid).children()
            return inner[0] if inner and inner[0].name() != "bwrap" else None
        except psutil.Error:
            return None

    def execute(self, command: Sequence[str], timeout: float = TIMEOUT) -> tuple[int, str]:
        """Run a command inside, as probes and hooks do. Returns its exit status and what it said; -1 where nothing runs."""
        first = self.first_process()
        if first is None:
            return -1, "it does not run"
        inside = [
            "nsenter",
            f"--target={first.pid}",
            "--user",
            "--preserve-credentials",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
        ]
        said = [f"{name}={value}" for name, value in self._variables().items()]
        done = subprocess.run(
            [*inside, "env", "--ignore-environment", *said, *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def kill(self) -> None:
        """End it without a word, as the kernel does when memory is short."""
        first = self.first_process()
        assert first is not None, f"{self.name} does not run: {self.lines}"
        first.kill()

    def keep_running(self) -> threading.Thread:
        """Start it, again and again, until it is stopped."""

        def loop() -> None:
            while not self.stopping:
                self.run()
                self.ended.wait(RESTART_SECONDS) if not self.stopping else None
            self.ended.set()

        self.stopping = False
        self.ended.clear()
        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        return thread

    def stop(self, grace: float = TIMEOUT) -> int:
        """Ask it to end (SIGTERM), and do not start it again. Returns its exit status; it is killed after `grace` seconds."""
        self.stopping = True
        first = self.first_process()
        if first is not None:
            try:
                first.terminate()
                first.wait(grace)
            except psutil.TimeoutExpired:
                first.kill()
            except psutil.NoSuchProcess:
                pass
        assert self.ended.wait(TIMEOUT), f"{self.name} goes on: {self.lines}"
        return 0 if self.process is None else self.process.wait()

    def await_probe(self, command: Sequence[str], timeout: float = TIMEOUT) -> str:
        """Ask a probe until it succeeds. Returns what it said."""
        deadline = time.monotonic() + timeout
        said = (-1, "")
        while time.monotonic() < deadline:
            said = self.execute(command)
            if said[0] == 0:
                return said[1]
        raise AssertionError(f"{self.name}: {said}, and it said {self.lines[-20:]}")


class Pod:
    """A pod of a StatefulSet: its init containers run to their end, then its container, again and again."""

    def __init__(self, cluster: Cluster, manifest: Mapping[str, Any], number: int, address: str) -> None:
        self.name = f"{manifest['metadata']['name']}-{number}"
        self.address = address
        self.cluster = cluster
        spec = manifest["spec"]["template"]["spec"]
        self.spec = spec
        self.grace = float(spec["terminationGracePeriodSeconds"])
        self.manifest = spec["containers"][0]
        self.begin()

    def begin(self) -> None:
        """Make its volumes and run it."""
        self.volumes = {volume["name"]: self.cluster.volume(self.name, volume) for volume in self.spec["volumes"]}
        self.init = [self._container(each) for each in self.spec["initContainers"]]
        for each in self.init:
            assert each.run() == 0, each.lines
        self.main = self._container(self.manifest)
        self.main.keep_running()

    def _container(self, said: Mapping[str, Any]) -> Container:
        security = self.spec["securityContext"]
        assert said["securityContext"]["readOnlyRootFilesystem"], "the sandbox knows no other"
        environment = {each["name"]: self._value(each) for each in said.get("env", ())}
        words = said.get("command", self.cluster.image.entrypoint) + said.get("args", [])
        command = [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in words]
        mounts = [
            (each["mountPath"], self.volumes[each["name"]], not each.get("readOnly", False))
            for each in said["volumeMounts"]
        ]
        return Container(
            self.name, command, self.cluster.image.environment | environment, mounts, self.cluster.hosts, self.cluster.folder,
            security["runAsUser"], security["runAsGroup"],
        )  # fmt: skip

    def _value(self, said: Mapping[str, Any]) -> str:
        if "value" in said:
            return str(said["value"])
        return {"status.podIP": self.address, "metadata.name": self.name}[said["valueFrom"]["fieldRef"]["fieldPath"]]

    def probe(self, name: str) -> list[str]:
        """The command of a probe."""
        return list(self.manifest[name]["exec"]["command"])

    def delete(self) -> tuple[int, str]:
        """End it as Kubernetes does: first the hook, then SIGTERM. Returns the status with which the container ended by itself
        (-1: it did not), and what the hook said, which is killed if the container ends meanwhile."""
        hook = self.manifest.get("lifecycle", {}).get("preStop")
        self.main.stopping = True
        said = "" if hook is None else self.main.execute(hook["exec"]["command"], self.grace)[1]
        status = self.main.process.wait(TIMEOUT) if self.main.process is not None and self.main.ended.wait(1.0) else -1
        self.main.stop(self.grace)
        return status, said


class Cluster:
    """Kubernetes, as far as manifests of GT need it, on this machine."""

    def __init__(self, files: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self.image = Image(files["Dockerfile"])
        listed = yaml.safe_load(files["kustomization.yaml"])["resources"]
        objects = [each for name in listed for each in yaml.safe_load_all(files[name])]
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        self.secrets: dict[str, dict[str, bytes]] = {}
        self.hosts: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        self.config_folders: dict[str, Path] = {}

    def create(self, name: str, files: Sequence[Path]) -> None:
        """A secret, or what a ConfigMap holds, from files."""
        self.secrets[name] = {path.name: path.read_bytes() for path in files}

    def update(self, name: str, files: Sequence[Path]) -> None:
        """Make a ConfigMap anew, and show it to the pods that have it."""
        self.create(name, files)
        _project(self.config_folders[name], self.secrets[name], 0o644)

    def volume(self, pod: str, said: Mapping[str, Any]) -> Path:
        """The folder of a volume: of a pod, or for a claim the one of all."""
        if "persistentVolumeClaim" in said:
            claim = said["persistentVolumeClaim"]["claimName"]
            assert ("PersistentVolumeClaim", claim) in self.objects
            return self._made(self.folder / claim)
        path = self.folder / f"{pod}.{said['name']}"
        shutil.rmtree(path, ignore_errors=True)
        if "secret" in said:
            _project(self._made(path), self.secrets[said["secret"]["secretName"]], said["secret"]["defaultMode"])
        elif "configMap" in said:
            name = said["configMap"]["name"]
            found = self.objects.get(("ConfigMap", name))
            data = self.secrets[name] if found is None else {key: text.encode() for key, text in found["data"].items()}
            _project(self._made(path), data, 0o644)
            self.config_folders[name] = path
        else:
            assert "emptyDir" in said, said
            self._made(path)
        return path

    @staticmethod
    def _made(path: Path) -> Path:
        path.mkdir(mode=0o770, exist_ok=True)
        return path

    def start(self, name: str) -> list[Pod]:
        """Run all pods of a StatefulSet."""
        manifest = self.objects["StatefulSet", name]
        last = len(self.pods)
        found = []
        for number in range(manifest["spec"]["replicas"]):
            address = f"127.0.0.{10 + last + number}"
            pod = Pod(self, manifest, number, address)
            self.pods[pod.name] = pod
            found.append(pod)
        return found

    def close(self) -> None:
        """End all that runs, workers first, without their hooks."""
        for pod in reversed(self.pods.values()):
            pod.main.stop()


def _project(folder: Path, data: Mapping[str, bytes], mode: int) -> None:
    """Lay files as a kubelet does: links to a folder that is replaced as a whole when they change."""
    real = folder / f"..{time.monotonic_ns()}"
    real.mkdir()
    for name, text in data.items():
        (real / name).write_bytes(text)
        (real / name).chmod(mode)
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")
    draft = folder / "..data_tmp"
    draft.symlink_to(real.name)
    draft.replace(folder / "..data")
    for entry in folder.iterdir():
        if not entry.exists():
            entry.unlink()


def composed(folder: Path, hosts: Mapping[str, str]) -> dict[str, Container]:
    """The containers of a Compose file, by service."""
    said = yaml.safe_load((folder / "compose.yaml").read_text())
    image = Image((folder / "Dockerfile").read_text())
    found = {}
    for name, service in said["services"].items():
        assert service["read_only"], "the sandbox knows no other"
        scratch = folder.parent / f"{name}.tmp"
        scratch.mkdir(exist_ok=True)
        mounts = [(path, scratch, True) for path in service["tmpfs"]]
        for volume in service.get("volumes", ()):
            outside, inside, *options = volume.split(":")
            mounts.append((inside, folder / outside, "ro" not in options))
        secrets = service.get("secrets", ())
        mounts += [(f"/run/secrets/{each}", folder / said["secrets"][each]["file"], False) for each in secrets]
        user, group = map(int, service["user"].split(":"))
        found[name] = Container(
            service.get("hostname", name), image.entrypoint + service["command"], image.environment | service["environment"],
            mounts, hosts, folder.parent, user, group,
        )  # fmt: skip
    return found
