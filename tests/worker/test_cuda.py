"""What can be known of GPU workers without a GPU: their CUDA sources compile, and with CuPy but no driver NumPy computes.

`make cuda` makes an environment of its own with CuPy and NVRTC, NVIDIA's run-time compiler, neither of which needs a driver;
without it these tests say so and skip.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from effort import cases
from generated_samples import adam, compiled, layer_norm, softmaxes, sources_of, written

from gt.dtypes import float16, float32
from gt.worker import joint
from gt.worker.backend import backend
from gt.worker.cuda_source import WIDE_ENTRY
from gt.worker.generated import OPTIONS
from gt.worker.nccl import ID_BYTES
from gt.worker.philox import SOURCE

PYTHON = Path(__file__).parents[2] / ".venv" / "cuda" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no CuPy and NVRTC to try: run `make cuda`")

CPU = backend("cpu")


COMPILE = """
import ctypes, importlib.util, json, pathlib, sys
from importlib.metadata import files
path = next(file for file in files("nvidia-cuda-nvrtc-cu12") if file.name.startswith("libnvrtc.so"))
nvrtc = ctypes.CDLL(str(path.locate()))

def ask(name, program):
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{name}")(program, text) == 0
    return text.value.decode()

def compiled(source, options):
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"gt.cu", 0, None, None) == 0
    given = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    found = [status, ask("ProgramLog", program).strip(), ask("PTX", program) if status == 0 else ""]
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return found

sources, options = json.load(sys.stdin)
print(json.dumps([compiled(source, options) for source in sources]))
"""

FALL_BACK = """
import json, logging, sys
said = []
logging.getLogger().addHandler(type("Said", (logging.Handler,), {"emit": lambda _, record: said.append(record.getMessage())})())
import cupy
from gt.errors import SessionError
from gt.worker.backend import backend, count_devices
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


def compiled_by_nvrtc(sources: list[str], architecture: str) -> list[tuple[int, str, str]]:
    """Status, log and PTX of each."""
    return [tuple(each) for each in python(COMPILE, [sources, [f"--gpu-architecture={architecture}", *OPTIONS]])]


@pytest.mark.parametrize("architecture", ["compute_75", "compute_80", "compute_90"])
def test_every_source_compiles(architecture: str) -> None:
    """For cards from Turing on, without a warning, and its entry has the name by which it is called."""
    sources = written(cases(60))
    unlike = {source: name for name, (source, _) in sources.items()}
    for name, (status, log, code) in zip(unlike.values(), compiled_by_nvrtc(list(unlike), architecture), strict=True):
        assert (status, log) == (0, ""), name
        assert f".entry {sources[name][1]}(" in code, name


def test_float_is_never_computed_in_double() -> None:
    """A function without a form for float would be computed in double, on most cards at 1/32 of the speed."""
    samples = {
        "adam": adam(float32, 8, 8),
        "softmax": softmaxes(float32, 9, 64),
        "layer norm": layer_norm(float32, 9, 64),
    }
    for name, sample in samples.items():
        (source,) = sources_of(compiled(sample, CPU))
        ((_, _, code),) = compiled_by_nvrtc([source], "compute_90")
        computed = set(re.findall(r"\b(?:add|sub|mul|div|fma|sqrt|rcp|ex2|lg2)[\w.]*\.f64", code))
        assert not computed, f"{name}: {computed}"


def test_memory_moves_sixteen_bytes_at_once() -> None:
    """Where sizes divide and memory is aligned: four floats, or eight numbers of half precision."""
    for dtype, wanted in ((float32, "ld.global.nc.v4"), (float16, "ld.global.nc.v4")):
        (source,) = sources_of(compiled(adam(dtype, 8, 64), CPU))
        ((_, _, code),) = compiled_by_nvrtc([source], "compute_90")
        wide = code[code.index(f".entry {WIDE_ENTRY}(") :]
        assert wanted in wide
        assert "st.global.v4" in wide


def test_what_does_not_compile_is_noticed() -> None:
    """The check can fail: an unknown name is an error with its line."""
    ((status, log, _),) = compiled_by_nvrtc([SOURCE.replace("rest /= ", "best /= ")], "compute_80")
    assert status != 0
    assert 'identifier "best" is undefined' in log


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


OF_SPECIAL: Final = ("special_function", "bessel", "scaled_bessel", "incomplete_gamma")
"""What makes kernels of special functions, by name."""


def asked_of_the_module() -> tuple[list[str], list[str]]:
    """What kernels and the backend ask of CuPy by name, and of its special functions, as their sources say."""
    functions, special = set(), set()
    for path in sorted((Path(__file__).parents[2] / "worker").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                names = ast.unparse(node).split(".")
                module = next((name for name in ("xp", "cupy") if name in names[:-1]), None)
                if module is not None and all(name.isidentifier() for name in names):
                    functions.add(".".join(names[names.index(module) + 1 :]))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                (first, *_), maker = node.args, node.func.id
                if isinstance(first, ast.Constant) and maker in (*OF_SPECIAL, "ufunc", "exact", "divide_integers"):
                    (special if maker in OF_SPECIAL else functions).add(str(first.value))
    return sorted(functions), sorted(special)


def test_cupy_has_all_that_kernels_ask_for() -> None:
    functions, special = asked_of_the_module()
    functions += [*METHODS]
    assert len(functions) > 60
    assert len(special) > 20
    assert python(ASKED, [functions, special]) == []


NCCL = """
import importlib.util, inspect, json, sys
if importlib.util.find_spec("nvidia.nccl") is None:
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
        for node in ast.walk(ast.parse((Path(__file__).parents[2] / "worker" / "nccl.py").read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self._communicator", "communicator")
    }
    bindings = {
        node.attr
        for node in ast.walk(ast.parse((Path(__file__).parents[2] / "worker" / "nccl.py").read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("bindings")
    }
    assert len(calls) == 9
    assert len(bindings) == 5
    numbers = sorted(joint.ADDED | {"sum", "prod", "max", "min"})
    found = python(NCCL, [numbers, sorted(bindings), sorted(calls)])
    if found is None:
        pytest.skip("no NCCL to ask: pip install nvidia-nccl-cu12 into .venv/cuda")
    assert found == [[], "bytes", ID_BYTES, True]
