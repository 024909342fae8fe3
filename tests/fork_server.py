"""Child processes of tests that a fork server forks: a process that has loaded GT, so that no child need load it again.

Loading takes a third of a second of CPU time, and most processes that tests start are no test of that. `ForkingPopen` is
`subprocess.Popen`, but that a child which would run this very interpreter, with settings that nothing reads while it loads, is
forked. The child is the caller's own: the server forks a process that forks it and ends, while the caller is who adopts orphans
(prctl(2), PR_SET_CHILD_SUBREAPER). Whoever waits for it, sends it signals or looks at its parent sees what a started process
shows. A program that is forked gets a fork server of its own before it does anything, for its daemons.

Run as a program this is the server of the tests' process. Nothing may be done here before a fork that a child would inherit: no
threads, no sockets, no daemons.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Final

MAX_REQUEST = 1 << 20
"""The most bytes of a request: arguments and environment, which Linux lets be larger, but no test's are."""
HIGH_DESCRIPTOR = 600
"""Where descriptors are that a program is not to meet."""
SET_CHILD_SUBREAPER = 36
"""The operation of prctl(2)."""
LOADED: Final = (
    "concurrent.futures.thread",
    "encodings.ascii",
    "encodings.idna",
    "gt.client.functional",
    "gt.client.segment.builder",
    "gt.client.session.session",
    "gt.client.session.socket_link",
    "gt.commands.app",
    "gt.dispatcher.process",
    "gt.service.launch",
    "gt.service.session",
    "gt.sharding.config",
    "gt.worker.process",
    "numpy",
    "pydantic.type_adapter",
)
"""What daemons, programs and commands load."""
FREE = ("GT_", "HF_", "PYTEST_", "TORCHINDUCTOR_", "XDG_", "TMPDIR")
"""How names of variables begin that nothing reads while it is loaded, but `GT_NATIVE`, which chooses what is loaded."""
SETTINGS: Final = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
    ),
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore:This process:DeprecationWarning",  # of forks beside threads, from Python 3.12 on
}
"""With what the server is loaded. A child that asks for nothing else gets it, too: BLAS has no threads that a fork would lose."""
FOLLOWED = tuple(signal.Signals(number) for number in (1, 2, 3, 10, 12, 13, 14, 15, 17))
"""Signals whose being ignored a process inherits."""


class ForkServer:
    """The caller's end of a server: `fork` has it fork a child."""

    def __init__(self, asks: socket.socket) -> None:
        self.asks = asks
        self.lock = threading.Lock()

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The number of a new process, a child of this one."""
        data = json.dumps(request).encode()
        assert len(data) <= MAX_REQUEST
        with self.lock:
            be_subreaper(True)
            try:
                socket.send_fds(self.asks, [data], descriptors)
                return int(self.asks.recv(32))
            finally:
                be_subreaper(False)


class ForkingPopen(subprocess.Popen[Any]):
    """A child process, which is forked if that makes no difference to what it does."""

    forked = False

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, startupinfo: Any,
        creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: int, start_new_session: bool, process_group: int,
    ) -> None:  # fmt: skip
        environment = dict(os.environ if env is None else env)
        unlike = any((executable, preexec_fn, shell, gid, gids, uid)) or process_group not in (-1, None) or umask != -1
        if unlike or not isinstance(args, list) or not can_be_forked(args, environment):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, p2cread, p2cwrite,
                c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask, start_new_session, process_group,
            )  # fmt: skip
            return
        own = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite, 2 if errwrite == -1 else errwrite]
        os.umask(mask := os.umask(0))
        request = {
            "command": args,
            "environment": environment,
            "folder": str(cwd or Path.cwd()),
            "umask": mask,
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "ignored": [number for number in FOLLOWED if signal.getsignal(number) is signal.SIG_IGN],
            "new_session": start_new_session,
            "passed": list(pass_fds),
        }
        self.pid = server().fork(request, [*own, *pass_fds])
        self.forked = True
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def can_be_forked(command: list[str], environment: dict[str, str]) -> bool:
    """Whether a fork of the server does what the command would: it is this interpreter, with a program or a module of GT, and no
    setting that is read while modules are loaded is another than the server's."""
    plain = command[:1] == [sys.executable] and (command[1] == "-c" or command[1:3] in (["-P", "-c"], ["-P", "-m"]))
    if not plain or (command[2] == "-m" and not command[3].startswith("gt.")):
        return False
    wanted = settings_of(environment)
    return all(wanted.pop(name, value) == value for name, value in SETTINGS.items()) and wanted == server_settings()


def server_settings() -> dict[str, str]:
    """The settings of the server, but those of all servers; they are this process's when it is first asked."""
    if not _settings:
        found = settings_of(dict(os.environ))
        _settings.append({name: value for name, value in found.items() if name not in SETTINGS})
    return _settings[0]


def settings_of(environment: dict[str, str]) -> dict[str, str]:
    """What of an environment may change what is loaded, or how."""
    return {name: value for name, value in environment.items() if not name.startswith(FREE) or name == "GT_NATIVE"}


def server() -> ForkServer:
    """The server of this process, which is started when it is first needed."""
    with _starting:
        if not _servers:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            room = "-" * 640  # for what a child is called
            command = [sys.executable, "-P", __file__, str(there.fileno()), room]
            with there:
                started = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(there.fileno(),),
                    env={**server_settings(), **SETTINGS},
                )  # fmt: skip
            atexit.register(started.wait)
            atexit.register(here.close)  # which comes first
            os.register_at_fork(after_in_child=forget_server)
            _servers.append(ForkServer(here))
        return _servers[0]


def be_subreaper(value: bool) -> None:
    """Whether orphans of this process's descendants become its children."""
    if ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def serve(asks: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a child for each request until the other end is closed. Returns in the child alone: the request, its descriptors."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(asks, MAX_REQUEST, 64)
        if not data:
            os._exit(0)
        told, tells = os.pipe()
        waits, goes = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(tells, str(child).encode())
                os._exit(0)
            os.close(goes)
            if not os.read(waits, 1):  # until it has its parent; the server has been killed before
                os._exit(1)
            asks.detach()
            return json.loads(data), descriptors
        os.waitpid(between, 0)
        number = os.read(told, 32)
        os.write(goes, b"1")
        for descriptor in (told, tells, waits, goes, *descriptors):
            os.close(descriptor)
        asks.send(number)


def take_descriptors(given: list[int], wanted: list[int]) -> None:
    """Have exactly the descriptors that are wanted, in place of the given ones, and no others."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) for descriptor in given]
    for entry in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208 — numbers, not paths
        if entry not in high:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(entry)
    for descriptor, number in zip(high, wanted, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def serve_further() -> bool:
    """Give this process a fork server for what it starts: a child, which has loaded no more than it has. Returns whether this is
    a process that was started by that."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        be_server()
        nothing = os.open(os.devnull, os.O_RDWR)
        here.detach()
        take_descriptors([nothing, nothing, nothing, there.detach()], [0, 1, 2, HIGH_DESCRIPTOR - 1])
        become(*serve(socket.socket(fileno=HIGH_DESCRIPTOR - 1)))
        return True
    there.close()
    ours = fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    here.close()
    _servers.append(ForkServer(socket.socket(fileno=ours)))
    os.register_at_fork(after_in_child=forget_server)
    return False


def be_server() -> None:
    """Live as long as somebody may ask, whatever signals their process group gets."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def forget_server() -> None:
    """In a process that a program forks: the server is its parent's, and what it starts is no fork of that."""
    while _servers:
        _servers.pop().asks.close()
    _settings[:] = [{}]


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the process that the request's command would have started, but for running its program, which stands in `_program`."""
    take_descriptors(descriptors, [0, 1, 2, *request["passed"]])
    os.umask(request["umask"])
    os.chdir(request["folder"])
    if request["new_session"]:
        os.setsid()
    for number in FOLLOWED:
        standard = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        ignored = number in request["ignored"] or number == signal.SIGPIPE  # as Python does
        signal.signal(number, signal.SIG_IGN if ignored else standard)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    command: list[str] = request["command"]
    be_called(command)
    sys.orig_argv[:] = command
    safe = command[1] == "-P"
    option, rest = command[1 + safe], command[2 + safe :]
    sys.path[:] = _path if safe else ["", *_path]
    sys.argv[:] = ["-c" if option == "-c" else rest[0], *rest[1:]]
    _program[:] = option, rest[0]
    _settings.clear()
    server_settings()


def be_called(command: list[str]) -> None:
    """Have /proc/self/cmdline say this command: it fills the memory of the arguments, with slashes in front of its path."""
    first, last = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    words = "\0".join(command).encode()[: last - first - 1] + b"\0"
    ctypes.memmove(first, words.rjust(last - first, b"/"), last - first)


def load() -> None:
    """Load what daemons, programs and commands load."""
    import importlib

    gc.disable()
    for name in LOADED:
        importlib.import_module(name)
    import gt

    gt.nn, gt.optim, gt.zeros  # noqa: B018 — which loads them
    importlib.import_module("gt.daemon.daemon_process").Popen = ForkingPopen  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    gc.enable()


_servers: list[ForkServer] = []
_settings: list[dict[str, str]] = []
_starting = threading.Lock()
_program: list[str] = []
_path = list(sys.path)

if __name__ == "__main__":
    load()
    be_server()
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
    while _program[0] == "-c" and serve_further():
        pass
    if _program[0] == "-m":
        runpy.run_module(_program[1], run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(_program[1], "<string>", "exec"), vars(sys.modules["__main__"]))
