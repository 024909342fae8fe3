"""What can be known of GPU workers without a GPU: their CUDA sources compile, and with CuPy but no driver NumPy computes.

`make cuda` makes an environment of its own with CuPy and NVRTC, NVIDIA's run-time compiler, neither of which needs a driver;
without it these tests say so and skip.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gt.worker.philox import SOURCE

PYTHON = Path(__file__).parents[2] / ".venv" / "cuda" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no CuPy and NVRTC to try: run `make cuda`")

SOURCES = {"philox_words": SOURCE}
"""All CUDA that GT writes, by its entry."""

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

source, architecture = json.load(sys.stdin)
program = ctypes.c_void_p()
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"gt.cu", 0, None, None) == 0
options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false", b"--std=c++17"]
status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
log = ask("ProgramLog", program)
print(json.dumps([status, log, ask("PTX", program) if status == 0 else ""]))
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
    done = subprocess.run(command, input=json.dumps(said), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("architecture", ["compute_75", "compute_80", "compute_90"])
@pytest.mark.parametrize("entry", SOURCES)
def test_every_source_compiles(entry: str, architecture: str) -> None:
    """For cards from Turing on, without a warning, and its entry has the name by which it is called."""
    status, log, code = python(COMPILE, [SOURCES[entry], architecture])
    assert (status, log.strip("\0\n ")) == (0, "")
    assert f".entry {entry}(" in code


def test_what_does_not_compile_is_noticed() -> None:
    """The check can fail: an unknown name is an error with its line."""
    status, log, _ = python(COMPILE, [SOURCE.replace("rest /= ", "best /= "), "compute_80"])
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
    assert refusal.endswith("install gt-tensor[cuda12] or say 'cpu'")
