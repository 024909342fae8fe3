"""The C++ client of examples/cpp against real services: `make cpp-test` builds it with sanitizers and runs these tests.

They are not part of `make test`, because they need a C++ compiler and two libraries, and building takes a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.numpy
from cutting_proxy import CuttingProxy
from daemons import Machine, Process, ends, left_by_kill

import gt

REPOSITORY = Path(__file__).parents[2]
BUILT = Path(os.environ.get("GT_CPP_BUILD", REPOSITORY / "build" / "cpp"))
DIGITS = str(REPOSITORY / "examples" / "cpp" / "digits.py")
TWO_WORKERS = """
mesh: {model: 2}
sharding_config:
  hidden: {strategy: tensor_parallel, dimension: 0}
  hidden2: {strategy: tensor_parallel, dimension: 1}
"""
DISPATCHER = """
import signal, sys
from gt.dispatcher.shell import DispatcherShell
shell = DispatcherShell("tcp://127.0.0.1:*", workers=1)
signal.signal(signal.SIGTERM, shell.stop)
print("at", shell.address, shell.relay.address, flush=True)
shell.core.facts["bulk_address"] = sys.stdin.readline().strip()  # where a bad network leads to it
shell.run()
"""

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a file with a trained network, and the images that it has not seen."""
    path = tmp_path_factory.mktemp("digits") / "digits.safetensors"
    made = Machine()
    try:
        training = made.start("training", [sys.executable, DIGITS, "train", str(path), "--epochs", "3"])
        assert training.wait(120) == 0, training.lines
    finally:
        made.close()
        made.remove()
    return str(path)


def check(machine: Machine, *arguments: str, program: str = "checks") -> Process:
    """A program of the client, built with sanitizers: an error that they find ends it with another status."""
    return machine.start(f"{program} {' '.join(arguments)}", [str(BUILT / program), *arguments])


def new_key(machine: Machine) -> str:
    """The path of a new key."""
    made = machine.command("keys", "new", "cpp")
    path = made.expect("is the secret key").split()[0]
    assert made.wait() == 0
    return path


@pytest.mark.parametrize("address", ["ipc://{}/dispatcher", "tcp://127.0.0.1:*"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_network_says_the_same_bits_as_in_python(
    machine: Machine, network: str, tmp_path: Path, address: str, workers: int
) -> None:
    """Over a Unix socket and over TCP with a key, on one worker and sharded over two by the service's YAML."""
    config = tmp_path / "config.yaml"
    config.write_text(TWO_WORKERS)
    options = ["--config", str(config)] if workers > 1 else []
    service, *_ = machine.service(workers, "--address", address.format(machine.temp), *options)
    machine.environment["GT_KEY"] = new_key(machine)
    outs = [str(tmp_path / name) for name in ("cpp", "python")]
    mine = check(machine, service, network, outs[0], program="digits")
    recognised = mine.expect("recognised")
    assert mine.wait() == 0
    assert float(recognised.split()[1]) > 80
    assert recognised.endswith(f"on {workers} workers")
    theirs = machine.start("logits", [sys.executable, DIGITS, "logits", service, network, outs[1]])
    assert theirs.wait() == 0, theirs.lines
    here, there = (safetensors.numpy.load_file(out)["logits"] for out in outs)
    assert here.shape == (360, 10)
    assert here.tobytes() == there.tobytes()


def test_the_services_yaml_shards_what_is_in_a_signal(machine: Machine, tmp_path: Path) -> None:
    """Each of two workers holds a half of a weight in the signal."""
    config = tmp_path / "config.yaml"
    config.write_text(TWO_WORKERS)
    address, *_ = machine.service(2, "--address", f"ipc://{machine.temp}/dispatcher", "--config", str(config))
    gt.connect(address)
    program = check(machine, "signals", address)
    program.expect("held")
    held = {each.worker: each.live + each.shared for each in gt.memory().holders if each.signal == "hidden"}
    assert held == {0: 128 * 64 * 2, 1: 128 * 64 * 2}
    program.say()
    assert program.wait() == 0


def test_the_program_in_the_readme_compiles(tmp_path: Path) -> None:
    folder = REPOSITORY / "examples" / "cpp"
    (code,) = re.findall(r"```cpp\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL)
    program = tmp_path / "readme.cpp"
    program.write_text(code)
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Wno-unused",
        "-fsyntax-only",
        "-I",
        str(folder),
    ]
    subprocess.run([*command, str(program)], check=True)


def test_every_operation_gives_the_bits_of_python(machine: Machine, tmp_path: Path) -> None:
    address, *_ = machine.service(1, "--address", f"ipc://{machine.temp}/dispatcher")
    out = tmp_path / "operations"
    program = check(machine, "operations", address, str(out))
    assert program.wait() == 0, program.lines
    gt.connect(address)
    said = gt.load(str(out))
    x, y, w, bias, index, stack = (said[name] for name in ("x", "y", "w", "bias", "index", "stack"))
    expected = {
        "neg": -x, "abs": x.abs(), "exp": x.exp(), "log": x.abs().log(), "sqrt": x.abs().sqrt(), "sin": x.sin(),
        "cos": x.cos(), "tanh": x.tanh(), "sigmoid": x.sigmoid(), "relu": x.relu(), "erf": x.erf(), "add": x + y,
        "sub": 1 - x, "mul": 0.5 * x, "div": x / y, "pow": x.abs() ** 1.5, "maximum": x.clamp(min=0.25),
        "minimum": gt.minimum(x, y), "eq": x.eq(x), "lt": x < y, "gt": x > 0, "where": gt.where(x < y, x, 7),
        "cast": x.to(gt.int32), "half": x.to(gt.bfloat16), "sum": x.sum(), "sum1": x.sum(-1, keepdim=True),
        "max": x.amax(0), "min": x.amin(), "mean": x.mean(1), "argmax": x.argmax(1), "softmax": x.softmax(1),
        "log_softmax": x.log_softmax(-1), "reshape": x.reshape(2, -1), "permute": stack.permute(2, 0, 1),
        "expand": bias.expand(5, 3), "cat": gt.cat([x, y]), "slice": x[:, 2:5], "take": x[index], "matmul": stack @ w.T,
        "linear": gt.nn.functional.linear(x, w, bias), "full": gt.full((2, 3), 1.25), "floor": x.floor(),
    }  # fmt: skip
    assert {*said} - {*expected} == {"x", "y", "w", "bias", "index", "stack"}
    for name, tensor in expected.items():
        assert (said[name].dtype, said[name].shape) == (tensor.dtype, tensor.shape), name
        assert said[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def test_errors_name_the_line_of_the_program(machine: Machine) -> None:
    """Those that the client finds are thrown in that line; those of the service when something is fetched that depends on it."""
    address, *_ = machine.service(1, "--address", f"ipc://{machine.temp}/dispatcher")
    program = check(machine, "errors", address)
    names = (
        "shapes",
        "dtypes",
        "number",
        "empty",
        "size",
        "negative",
        "vast",
        "deep",
        "signal",
        "name",
        "bytes",
        "refused",
        "depends",
        "unlike",
        "poisoned",
        "again",
    )
    said = {name: program.expect(f"{name}: ").partition(": ")[2] for name in names}
    program.expect("the rest was computed")
    said |= {name: program.expect(f"{name}: ").partition(": ")[2] for name in ("mixed", "closed")}
    assert program.wait() == 0
    source = (REPOSITORY / "examples" / "cpp" / "checks.cpp").read_text().splitlines()

    def line(code: str) -> str:
        (number,) = [at for at, text in enumerate(source, 1) if code in text]
        return f"checks.cpp:{number}"

    assert said["shapes"].startswith("ShapeError: matmul: (2, 3) @ (2, 3)")
    assert line("gt::matmul(x, x)") in said["shapes"]
    assert said["dtypes"].startswith("DTypeError: add: operands have one dtype, not f32 and i64")
    assert line("gt::add(x, whole)") in said["dtypes"]
    assert said["number"].startswith("DTypeError: mul: a number of that kind does not fit i64")
    assert said["empty"] == "SessionError: a tensor that was made of nothing"
    assert said["size"].startswith("ShapeError: put: 5 values")
    assert said["negative"] == "ShapeError: put: a shape has sizes from 0 on, not -2"
    assert said["vast"] == "ShapeError: a shape has at most 2^48 elements, and this one has more"
    assert said["deep"] == "ShapeError: put: a shape has at most 32 dimensions, not 33"
    assert said["signal"] == "ConfigError: the name of a signal is not UTF-8"
    assert said["name"] == "ProtocolError: the name of an operation or attribute is not UTF-8"
    assert said["bytes"].startswith("ShapeError: what was computed has 24 bytes, and not the 36 ")
    assert said["refused"].startswith("ProtocolError: there is no op 'nonesuch'")
    assert line('"nonesuch"') in said["refused"]
    assert said["depends"] == said["refused"]
    assert said["unlike"].startswith("ShapeError: sum: axis 5 is out of range")
    assert said["poisoned"].startswith("IndexOutOfRange: take: index 9 is out of range")
    assert said["again"] == said["poisoned"]
    assert any(line("poisoned = ") in each for each in program.lines)
    assert said["mixed"].startswith("SessionError: add: the operands belong to two sessions")
    assert said["closed"] == "SessionError: the session was closed"


@pytest.mark.parametrize("what", ["bulk", "runs"])
def test_cut_connections_lose_nothing(machine: Machine, what: str) -> None:
    """Connections are cut in the middle of what passes, again and again, those of the control and of the bulk socket."""
    machine.environment |= {"GT_SHARED_MEMORY": "0", "GT_LEASE": "20"}
    dispatcher = machine.start("a dispatcher", [sys.executable, "-P", "-c", DISPATCHER])
    _, control, bulk = dispatcher.expect("at tcp").split()
    with CuttingProxy(control) as near, CuttingProxy(bulk) as near_bulk:
        dispatcher.say(near_bulk.address)
        machine.environment["GT_KEY"] = f"{machine.environment['XDG_CONFIG_HOME']}/gt/keys/own.key"
        machine.worker(control).expect("at your service")
        near.cut_every, near_bulk.cut_every = 8_000, 20_000_000
        program = check(machine, what, near.address, {"bulk": "3", "runs": "600"}[what])
        said = program.expect("all right after", 120)
        assert program.wait() == 0
        assert int(said.split()[3]) >= 3, "connections were cut"


def test_tensors_are_freed_with_their_last_handle(machine: Machine) -> None:
    address, *_ = machine.service(1, "--address", f"ipc://{machine.temp}/dispatcher")
    gt.connect(address)
    program = check(machine, "frees", address)
    for word, least, most in (("many", 21, 24), ("one", 1, 2)):
        program.expect(word)
        found = sum(worker.live + worker.shared for worker in gt.memory().workers)
        assert least << 20 <= found < most << 20, word
        program.say()
    assert program.wait() == 0


def test_a_dispatcher_that_was_started_again_is_a_clear_error(machine: Machine) -> None:
    address, dispatcher, workers = machine.service(1, "--address", f"ipc://{machine.temp}/dispatcher")
    program = check(machine, "lost", address)
    program.expect("ready")
    dispatcher.signal(9)
    dispatcher.wait()
    for worker in workers:
        worker.close()
    machine.service(1, "--address", address)
    program.say()
    lost = program.expect("lost: ")
    assert "SessionError: " in lost
    assert "does not know this session any more" in lost
    assert program.expect("again ").split()[1] == "20.000000"
    assert program.wait() == 0


def test_a_worker_that_is_lost_is_an_error_of_its_tensors(machine: Machine) -> None:
    address, dispatcher, workers = machine.service(1, "--address", f"ipc://{machine.temp}/dispatcher")
    program = check(machine, "lost", address)
    program.expect("ready")
    workers[0].signal(9)
    assert ends(workers[0].pid)
    left_by_kill(machine, workers[0])
    dispatcher.expect("worker 0 was lost")
    machine.worker(address).expect("at your service")
    program.say()
    assert "WorkerLost: " in program.expect("lost: ")
    assert program.expect("again ").split()[1] == "20.000000"
    assert program.wait() == 0


def test_who_is_not_let_in_is_told_so(machine: Machine, tmp_path: Path) -> None:
    """Without a key that the service accepts, with one that others can read, and where nobody listens."""
    address, *_ = machine.service(1)
    key = Path(new_key(machine))
    (key.parent / "authorized" / "cpp.pub").unlink()
    program = check(machine, "refused", address, str(key))
    assert "ConnectionFailed: " in program.expect("refused: ")
    assert "it does not accept this key" in program.lines[-1]
    key.chmod(0o644)
    assert f"chmod 600 {key}" in check(machine, "refused", address, str(key)).expect("refused: ")
    nobody = f"ipc://{tmp_path}/nobody"
    assert f"{nobody} did not answer" in check(machine, "refused", nobody).expect("refused: ")


def test_a_damaged_file_is_refused(machine: Machine, network: str, tmp_path: Path) -> None:
    whole = Path(network).read_bytes()
    for name, content, said in (
        ("short", whole[:100], "it is shorter than its header"),
        ("cut", whole[:-8], "does not have the bytes of its shape"),
        ("text", b"\x08\0\0\0\0\0\0\0" + b"nonsense", "its header lacks a {"),
        ("large", whole.replace(b"[128,64]", b"[128,65]"), "does not have the bytes of its shape"),
        ("none", b"", "it is shorter than its header"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        program = check(machine, "ipc:///nowhere", str(path), "out", program="digits")
        assert program.wait() == 1
        assert any("FileError: " in line and said in line for line in program.lines), (name, program.lines)
    program = check(machine, "ipc:///nowhere", str(tmp_path), "out", program="digits")
    assert program.wait() == 1
    assert program.lines == [f"FileError: {tmp_path} cannot be opened"]
