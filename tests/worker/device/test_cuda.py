"""What CuPy itself tells of GPU workers without a GPU: it has what they ask for, and with CuPy but no driver NumPy computes.

`make cuda` makes an environment of its own with CuPy, which needs no driver to be imported; without it these tests say so and
skip. That CUDA sources compile is in `tests/worker/fusion/cuda/test_nvrtc.py`.
"""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from gt.worker.nccl import collective_moves
from gt.worker.nccl.communicators import UNIQUE_ID_BYTES

PYTHON = Path(__file__).parents[3] / ".venv" / "cuda" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no CuPy to try: run `make cuda`")

FALL_BACK = """
import json, logging, sys
said = []
logging.getLogger().addHandler(type("Said", (logging.Handler,), {"emit": lambda _, record: said.append(record.getMessage())})())
import cupy
from gt.errors import SessionError
from gt.worker.base.backend import backend, count_devices
found = [count_devices(), backend(None).name, backend(None).name]
try:
    backend("cuda:0")
except SessionError as error:
    refusal = str(error)
print(json.dumps([*found, said, refusal]))
"""


def python(program: str, said: Any = None) -> Any:
    """What a program prints, as JSON, when it runs where CuPy is."""
    command = [str(PYTHON), "-W", "error", "-c", program]
    done = subprocess.run(command, input=json.dumps(said), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a driver")
def test_without_a_driver_numpy_computes() -> None:
    """CuPy imports, no driver answers: one line, once, and NumPy; a GPU that was asked for is refused with the reason."""
    devices, first, again, said, refusal = python(FALL_BACK)
    assert (devices, first, again) == (0, "cpu", "cpu")
    (line,) = said
    assert line.startswith("computing on the CPU with NumPy: no CUDA driver answers (cudaError")
    assert refusal.startswith("device 'cuda:0' cannot be had, no CUDA driver answers (cudaError")
    assert refusal.endswith("install gt-tensor[cuda12] and its driver, or say 'cpu'")


ASKED = """
import importlib, json, sys
import cupy, cupyx.scipy.special
from functools import reduce
functions, special = json.load(sys.stdin)
missing = []
for root, names in ((cupy, functions), (cupyx.scipy.special, special)):
    for name in names:
        try:
            reduce(getattr, name.split("."), root)
        except AttributeError:
            missing.append(name)
print(json.dumps(missing))
"""


METHODS = (
    "cuda.Event.done", "cuda.Event.record", "cuda.Event.synchronize", "cuda.Stream.record", "cuda.Stream.wait_event",
    "cuda.Stream.__enter__", "cuda.MemoryPointer.copy_from_host_async",
    "cuda.MemoryPointer.copy_to_host_async", "cuda.MemoryPointer.device_id", "cuda.MemoryPointer.mem", "cuda.MemoryPointer.ptr",
    "cuda.MemoryPool.free_all_blocks", "cuda.MemoryPool.malloc", "cuda.UnownedMemory.size", "ndarray.get", "ndarray.data",
)  # fmt: skip
"""What is asked of CuPy's objects, of which the sources do not say whose they are."""


OF_SPECIAL: Final = ("special_function", "bessel", "scaled_bessel", "incomplete_gamma", "_special")
"""What makes kernels of special functions, by name."""
ON_CPUS_ALONE: Final = {"dawsn"}
"""Special functions that GPU workers compose, because CuPy does not have them."""


def asked_of_the_module() -> tuple[list[str], list[str]]:
    """What kernels and the backend ask of CuPy by name, and of its special functions, as their sources say."""
    functions, special = set(), set()
    for path in sorted((Path(__file__).parents[3] / "worker").rglob("*.py")):
        if any(part.startswith("torch_") for part in path.parts):
            continue  # these ask PyTorch
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                names = ast.unparse(node).split(".")
                module = next((name for name in ("xp", "cupy") if name in names[:-1]), None)
                if module is not None and all(name.isidentifier() for name in names):
                    functions.add(".".join(names[names.index(module) + 1 :]))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                (first, *_), maker = node.args, node.func.id
                if isinstance(first, ast.Constant) and maker in (
                    *OF_SPECIAL,
                    "ufunc",
                    "exact",
                    "divide_integers",
                    "_ufunc",
                ):
                    (special if maker in OF_SPECIAL else functions).add(str(first.value))
    return sorted(functions), sorted(special - ON_CPUS_ALONE)


def test_cupy_has_all_that_kernels_ask_for() -> None:
    functions, special = asked_of_the_module()
    functions += [*METHODS]
    assert len(functions) > 60
    assert len(special) > 20
    assert python(ASKED, [functions, special]) == []


NCCL = """
import importlib.metadata, json, sys
if not any(each.name.startswith("nvidia-nccl") for each in importlib.metadata.distributions()):
    print(json.dumps(None))
    raise SystemExit
from cupy.cuda import nccl
numbers, bindings, methods = json.load(sys.stdin)
missing = [name for name in numbers if not hasattr(nccl, "NCCL_" + name.upper())]
missing += [name for name in bindings if not hasattr(nccl, name)]
missing += [name for name in methods if not hasattr(nccl.NcclCommunicator, name)]
unique_id = nccl.get_unique_id()
print(json.dumps([missing, type(unique_id).__name__, len(unique_id), nccl.get_version() > 0]))
"""


def test_nccl_has_all_that_groups_ask_for() -> None:
    """Names and unique ids need no driver, but NCCL's own library (`nvidia-nccl-cu12`)."""
    calls = {
        node.attr
        for node in ast.walk(
            ast.parse((Path(__file__).parents[3] / "worker" / "nccl" / "communicators.py").read_text("utf-8"))
        )
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self._communicator", "communicator")
    }
    bindings = {
        node.attr
        for node in ast.walk(
            ast.parse((Path(__file__).parents[3] / "worker" / "nccl" / "communicators.py").read_text("utf-8"))
        )
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("bindings")
    }
    assert len(calls) == 9
    assert len(bindings) == 5
    numbers = sorted(collective_moves.SUMMABLE_DTYPES | {"sum", "prod", "max", "min"})
    found = python(NCCL, [numbers, sorted(bindings), sorted(calls)])
    if found is None:
        pytest.skip("no NCCL to ask: pip install nvidia-nccl-cu12 into .venv/cuda")
    assert found == [[], "bytes", UNIQUE_ID_BYTES, True]
