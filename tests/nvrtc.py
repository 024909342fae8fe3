"""NVIDIA's run-time compiler, as the `dev` extra brings it: a library and nothing else. It needs no driver, and no CuPy.

Where there is no such library, as on other systems than Linux, `FOUND` is None.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Final, NamedTuple

from gt.worker.kernels.cuda.source import COMPILER_OPTIONS

PACKAGE: Final = "nvidia-cuda-nvrtc-cu12"
WHY: Final = f"no NVRTC to try: {PACKAGE} comes with the dev extra, on Linux"


class Compiled(NamedTuple):
    """What NVRTC made of a source: 0 and no log where there was nothing to say."""

    status: int
    log: str
    code: str


def _found() -> Path | None:
    try:
        shipped = files(PACKAGE) or []
    except PackageNotFoundError:
        return None
    path = next((file for file in shipped if file.name.startswith("libnvrtc.so")), None)
    return None if path is None else Path(str(path.locate()))


FOUND: Final = _found()


@cache
def _library() -> Any:
    return ctypes.CDLL(str(FOUND))


def _said(name: str, program: ctypes.c_void_p) -> str:
    """A text about a program."""
    size = ctypes.c_size_t()
    assert getattr(_library(), f"nvrtcGet{name}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(_library(), f"nvrtcGet{name}")(program, text) == 0
    return text.value.decode()


def compiled(source: str, architecture: str) -> Compiled:
    """A source for cards of an architecture, as workers have it compiled."""
    program = ctypes.c_void_p()
    made = _library().nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"gt.cu", 0, None, None)
    assert made == 0, "NVRTC takes any text"
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *COMPILER_OPTIONS)]
        status = _library().nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        return Compiled(status, _said("ProgramLog", program).strip(), _said("PTX", program) if status == 0 else "")
    finally:
        _library().nvrtcDestroyProgram(ctypes.byref(program))
