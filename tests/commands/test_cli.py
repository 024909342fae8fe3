"""The command line, in this process: what commands print, what they refuse in one line, and what they load.

Nothing is started here; that is done by the tests of processes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gt.commands import daemons as daemon_commands
from gt.commands.app import app
from gt.commands.ops import ops_page
from gt.errors import ConnectionFailed, SessionError
from gt.ir.ops import OPS
from gt.native import finder
from gt.sharding.config import Config

CONFIGS = Path(__file__).parents[2] / "configs"


def gt(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refused(result: Result) -> str:
    """The one line on stderr of a command that was refused."""
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


class Daemons:
    """Stands for `Local`: notes how it was started, and that it was closed. One of the daemons ends at once."""

    started: list[dict[str, object]]
    closed: int

    def __init__(self, workers: int, **options: object) -> None:
        self.address = options["address"]
        self.started.append({"workers": workers, **options})

    def wait(self) -> None:
        raise SessionError("worker 1 ended with status -9")

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that a command makes are made in a folder of the test, and named in its environment alone."""
    monkeypatch.setenv("GT_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("GT_KEY", "")


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> type[Daemons]:
    """`gt up` starts these in place of processes, and leaves this process' signal handlers alone."""
    kind = type("Started", (Daemons,), {"started": [], "closed": 0})
    monkeypatch.setattr("gt.service.launch.Local", kind)
    monkeypatch.setattr("gt.commands.daemons.wait_for_workers", lambda local, count, spares: True)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    return kind


def test_the_version_is_told_twice_the_same() -> None:
    told = {gt("version").stdout, gt("--version").stdout}
    assert len(told) == 1
    assert told.pop().startswith("gt ")


def test_no_command_shows_what_there_is() -> None:
    shown = gt().stdout + gt().stderr
    assert all(name in shown for name in ("up", "dispatcher", "worker", "ops", "version"))


def test_ops_prints_a_line_for_every_op() -> None:
    head, *lines = gt("ops").stdout.splitlines()
    assert head.split()[:3] == ["op", "family", "operands"]
    assert [line.split()[0] for line in lines] == list(OPS)


def test_ops_prints_markdown() -> None:
    assert gt("ops", "--markdown").stdout == ops_page()


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:7000", "tcp://*:7000", "tcp://192.0.2.1:7000", "tcp://gt.example:7000"]
)
def test_only_loopback_is_bound(address: str, daemons: type[Daemons]) -> None:
    assert "nobody has a key yet" in refused(gt("up", "--workers", "1", "--address", address))
    assert daemons.started == []


def test_what_is_no_address_is_refused(daemons: type[Daemons]) -> None:
    assert "is no address" in refused(gt("up", "--address", "7000"))
    assert daemons.started == []


def test_an_address_in_use_is_refused_before_anything_starts(daemons: type[Daemons]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert refused(gt("up", "--address", address)) == (
            f"gt: {address} is in use by another process; choose another --address"
        )
    assert daemons.started == []


def test_a_socket_file_that_somebody_listens_at_is_in_use(tmp_path: Path, daemons: type[Daemons]) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert "is in use" in refused(gt("up", "--address", f"ipc://{path}"))
    assert daemons.started == []


def test_a_wrong_config_is_refused_before_anything_starts(tmp_path: Path, daemons: type[Daemons]) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("sharding_config:\n  a: {strategy: tensor_paralel}\n")
    line = refused(gt("up", "--address", f"ipc://{tmp_path}/s", "--config", str(wrong)))
    assert line.startswith(f"gt: {wrong}:2: sharding_config.a.strategy: 'tensor_paralel' is not a strategy")
    assert daemons.started == []


def test_a_config_that_is_not_there_is_refused(tmp_path: Path, daemons: type[Daemons]) -> None:
    line = refused(gt("up", "--address", f"ipc://{tmp_path}/s", "--config", str(tmp_path / "none.yaml")))
    assert "cannot be read" in line
    assert daemons.started == []


def test_a_mesh_that_takes_more_workers_than_asked_for_is_refused(tmp_path: Path, daemons: type[Daemons]) -> None:
    config = str(CONFIGS / "digits.yaml")
    assert "takes 4 workers" in refused(
        gt("up", "--workers", "2", "--address", f"ipc://{tmp_path}/s", "--config", config)
    )
    assert daemons.started == []


def test_no_workers_are_too_few() -> None:
    assert gt("up", "--workers", "0").exit_code == 2


def test_up_starts_what_it_was_told_says_so_and_ends_all_when_one_ends(tmp_path: Path, daemons: type[Daemons]) -> None:
    address, config = f"ipc://{tmp_path}/s", str(CONFIGS / "digits.yaml")
    result = gt("up", "--workers", "5", "--address", address, "--config", config)
    told = {"address": address, "config": config, "devices": None, "quiet": False, "options": [], "spares": 0}
    assert daemons.started == [{"workers": 5, **told}]
    assert result.stdout == f"5 workers at {address}; Ctrl-C stops them\n"
    assert result.stderr == "gt: worker 1 ended with status -9\n"
    assert (result.exit_code, daemons.closed) == (1, 1)


def test_without_a_number_there_are_as_many_workers_as_the_config_needs(
    tmp_path: Path, daemons: type[Daemons], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Config] = []
    monkeypatch.setattr("gt.service.launch.default_workers", lambda config, _device: asked.append(config) or 4)
    config = CONFIGS / "digits.yaml"
    gt("up", "--address", f"ipc://{tmp_path}/s", "--config", str(config))
    assert [given.mesh for given in asked] == [{"data": 2, "model": 2}]
    assert [started["workers"] for started in daemons.started] == [4]


def test_a_signal_ends_up_in_order(daemons: type[Daemons], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(daemons, "wait", lambda self: daemon_commands._stop(), raising=True)
    result = gt("up", "--workers", "1", "--address", f"ipc://{tmp_path}/s")
    assert (result.exit_code, result.stderr, daemons.closed) == (0, "", 1)


def test_the_dispatcher_is_served_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, dict[str, object]]] = []
    monkeypatch.setattr("gt.dispatcher.process.serve", lambda *args, **options: calls.append((args, options)) or 3)
    arguments = ["--address", "ipc:///x", "--config", "c.yaml", "--workers", "2", "--log-level", "debug"]
    arguments += ["--instruction-log", "run.log", "--with-data", "--log-format", "json", "--marks", "/lasting"]
    assert gt("dispatcher", *arguments).exit_code == 3
    where = {"config": "c.yaml", "workers": 2, "bulk": None, "marks": "/lasting", "standby": False}
    where |= {"primary": None, "lease": None, "accounts": None, "limits": None, "policy": "fair", "supervised": False}
    logging = {"log_level": "debug", "instruction_log": "run.log", "with_data": True, "log_format": "json"}
    assert (calls[0][1].pop("insecure"), calls[0][1].pop("group")) == (False, None)
    assert callable(calls[0][1].pop("listening"))  # where metrics are served from then on, if they are
    assert calls == [(("ipc:///x",), where | logging)]


def test_a_dispatcher_stands_by_at_the_address_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its folder, where what its sessions had is."""
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
    monkeypatch.setattr("gt.dispatcher.process.serve", lambda *args, **options: calls.append((args, options)) or 0)
    refused = gt("dispatcher", "--standby-of", "ipc:///x")
    assert refused.exit_code == 2
    assert "--marks" in refused.stderr
    assert not calls
    assert gt("dispatcher", "--standby-of", "ipc:///x", "--marks", "/lasting").exit_code == 0
    (((address,), options),) = calls
    assert (address, options["marks"], options["standby"]) == ("ipc:///x", "/lasting", True)


def test_a_dispatcher_stands_by_at_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder of its own: it copies what the other one keeps."""
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
    monkeypatch.setattr("gt.dispatcher.process.serve", lambda *args, **options: calls.append((args, options)) or 0)
    own = ("--address", "ipc:///y", "--marks", "/own")
    for wrong in (
        ("--standby-of", "ipc:///x", *own, "--insecure"),
        ("--standby-of", "ipc:///x", "--marks", "/own", "--lease", "5"),
        ("--lease", "5", *own),
    ):
        assert gt("dispatcher", *wrong).exit_code == 2
    assert not calls
    assert gt("dispatcher", "--standby-of", "ipc:///x", *own, "--lease", "5").exit_code == 0
    (((address,), options),) = calls
    assert (address, options["primary"], options["marks"], options["lease"]) == ("ipc:///y", "ipc:///x", "/own", 5.0)
    assert options["standby"] is False


def test_a_worker_is_served_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("gt.worker.process.serve", lambda *args, **options: calls.append((args, options)) or 0)
    monkeypatch.delenv("GT_LOG_LEVEL", raising=False)
    monkeypatch.setenv("GT_SNAPSHOTS", "/elsewhere")  # which is as it was after the test
    more = ("--listen", "tcp://127.0.0.1:7101", "--snapshots", "/kept", "--marks", "/lasting", "--supervised")
    assert gt("worker", "--address", "ipc:///x", "--device", "cpu", *more).exit_code == 0
    assert os.environ["GT_SNAPSHOTS"] == "/kept"
    where = {
        "listen": "tcp://127.0.0.1:7101",
        "announce": None,
        "marks": "/lasting",
        "spare": False,
        "supervised": True,
    }
    assert calls == [(("ipc:///x",), {"device": "cpu", "log_level": "info", "log_format": "text", **where})]


def test_a_log_level_that_does_not_exist_is_refused() -> None:
    assert gt("worker", "--log-level", "loud").exit_code == 2


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConnectionFailed("nobody there"), "nobody there"), (OSError("odd"), "odd"),
        (PermissionError(13, "Permission denied", "/tmp"), "/tmp: Permission denied"),
    ],
)  # fmt: skip
def test_errors_are_one_line(error: Exception, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr("gt.worker.process.serve", fail)
    assert refused(gt("worker", "--address", "ipc:///x")) == f"gt: {line}"


def test_the_command_line_loads_little() -> None:
    heavy = "{'pydantic', 'yaml', 'textual', 'scipy', 'cupy', 'gt.dispatcher', 'gt.worker', 'gt.client', 'zmq'}"
    code = f"import sys, gt.commands.app; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize("arguments", [("version",), ("ops",), ("explain", "no-such-program.py")])
def test_python_dash_m_gt_is_the_same_command(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_NATIVE", "0")  # a process is told of compiled modules that are stale, and this one only once
    finder.choice()
    ended = subprocess.run([sys.executable, "-m", "gt", *arguments], capture_output=True, text=True, check=False)
    here = gt(*arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (here.exit_code, here.stdout, here.stderr)


def test_ctrl_c_while_the_command_line_loads_is_no_traceback() -> None:
    """It ends as any program does, by the signal."""
    code = """
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Impatient:
            def find_spec(self, name, *_):
                if name == "typer":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Impatient())
        from gt.cli import main
        main()
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_keys_are_made_and_listed(tmp_path: Path) -> None:
    """What is made is said with its paths and listed with its role; a second one of the same name is refused."""
    made = gt("keys", "new", "node", "--role", "worker")
    assert made.exit_code == 0
    assert made.stdout.startswith(f"{tmp_path}/keys/node.key is the secret key")
    assert f"{tmp_path}/keys/authorized/node.pub authorises it as worker" in made.stdout
    listed = [line.split()[:3] for line in gt("keys", "list").stdout.splitlines()]
    assert listed[0][:2] == ["user", str(os.geteuid())]
    assert listed[1] == ["key", "node", "worker"]
    assert "exists already" in refused(gt("keys", "new", "node"))
    assert gt("keys", "new", "king", "--role", "king").exit_code == 2
