"""Build the pretend device: the real CuPy, over a CUDA device that is made of host memory, in a folder of its own.

What tests/gpu shows on it: that GT calls CuPy and CUDA as they are meant to be called, since the one is real and the other
keeps CUDA's rules; and what it computes. What it cannot show: what happens at the same time, how fast anything is, what
cuBLAS, cuFFT, cuSOLVER and a card's own arithmetic round, and NCCL between hosts.

    python tests/pretend/build.py .venv/pretend

makes there `venv`, in which `python -m pytest tests/gpu` finds the device without anything else; `make pretend-test` does that.

CuPy asks a dozen libraries. CUDA's runtime and driver are device/; NVRTC, cuBLAS, cuFFT, the dense part of cuSOLVER, NCCL and
sorting are libraries/; kernels are compiled by compile_kernel.py behind the headers in kernels/. What else CuPy's modules
link to is made to be there and to refuse. Two of CuPy's modules hold CUDA's code within themselves, so they are built anew from
CuPy's source distribution. LAPACK is SciPy's; headers and the real NVRTC come from NVIDIA's packages: nothing of CuPy or CUDA is
in this repository.

Needs Linux on x86-64, g++ and binutils, and what pip can have. Nothing is done twice: a stamp says what was built from what.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from compile_kernel import FLAGS

HERE: Final = Path(__file__).resolve().parent
REPOSITORY: Final = HERE.parents[1]
CUPY: Final = "14.2.0"
CUDA: Final = "12.9.*"
INSTALLED: Final = (f"cupy-cuda12x=={CUPY}", "cython>=3.2,<3.3")
TOOLKIT: Final = tuple(f"nvidia-cuda-{part}-cu12=={CUDA}" for part in ("runtime", "nvcc", "nvrtc"))
"""Headers are in the first two, the real NVRTC is in the last."""

REBUILT: Final = {"cupy_backends/cuda/api/runtime": (), "cupy/cuda/thrust": (HERE / "libraries" / "sorting.cpp",)}
"""The modules of CuPy that are built anew, and with which source of ours."""
CYTHON: Final = {
    "CUPY_USE_CUDA_PYTHON": "False",
    "CUPY_CUFFT_STATIC": "False",
    "CUPY_CYTHON_VERSION": "3.2.0",
    "CUPY_CUDA_VERSION": "12090",
    "CUPY_HIP_VERSION": "0",
}
"""What CuPy's own build tells Cython."""

NOT_SUPPORTED: Final = {"cuda": 801, "cublas": 15, "nccl": 4, "cusolver": 7, "cusparse": 7, "cufft": 7, "curand": 7}
"""With which status a function refuses that is not there, by how names begin."""
ANSWERED: Final = {
    "curandGetVersion": "int *version) { *version = 11000; return 0; }",
    "cusparseGetVersion": "int *version) { *version = 11000; return 0; }",
}
"""What CuPy asks before anything is computed: from the parameters on."""


class Library(NamedTuple):
    """Its file, CuPy's module that links to it, and whether some of it is LAPACK's."""

    file: str
    module: str
    by_lapack: bool = False


COMPUTING: Final = {
    "cublas": Library("libcublas.so.12", "cupy_backends/cuda/libs/cublas"),
    "cusolver": Library("libcusolver.so.11", "cupy_backends/cuda/libs/cusolver", by_lapack=True),
    "cufft": Library("libcufft.so.11", "cupy/cuda/cufft"),
    "nccl": Library("libnccl.so.2", "cupy_backends/cuda/libs/nccl"),
}
"""Libraries in libraries/, and what they lack refuses."""
REFUSING: Final = {
    "cusparse": Library("libcusparse.so.12", "cupy_backends/cuda/libs/cusparse"),
    "curand": Library("libcurand.so.10", "cupy_backends/cuda/libs/curand"),
}
"""Libraries of which there is nothing but what refuses."""
EMPTY: Final = ("libcublasLt.so.12", "libnvJitLink.so.12")
"""Libraries that others are loaded after, and that nobody calls."""
FOUND_AT: Final = {
    "cuda_runtime": {"libcudart.so.12": "libcuda.so.1"},
    "cuda_nvrtc": {"libnvrtc.so.12": "libnvrtc.so.12"},
    "cublas": {"libcublasLt.so.12": "libcublasLt.so.12"},
    "nvjitlink": {"libnvJitLink.so.12": "libnvJitLink.so.12"},
}
"""In which folder of NVIDIA's packages CuPy looks for which library, and what is there instead; the rest have folders of their
names."""


class CannotError(Exception):
    """Why it cannot be built, in one line."""


class Build:
    """What is built where."""

    def __init__(self, built: Path) -> None:
        self.built = built
        self.python = built / "venv" / "bin" / "python"
        self.source = built / f"cupy-{CUPY}"
        self.library = built / "lib"
        self.objects = built / "objects"
        self.cache = built / "cache" / digest(kernel_sources())
        """Kernels that were compiled with these headers: others count for nothing."""
        self.log = built / "build.log"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = built / "venv" / "lib" / version / "site-packages"
        toolkit = built / "toolkit" / "nvidia"
        self.cuda = [toolkit / "cuda_runtime" / "include", toolkit / "cuda_nvcc" / "include"]

    def run(self, what: str, *command: str | Path, cwd: Path | None = None, **environment: str) -> None:
        """One command. Raises `CannotError` where it fails."""
        done = subprocess.run(
            [str(each) for each in command],
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        with self.log.open("a") as log:
            log.write(f"{' '.join(map(str, command))}\n{done.stdout}\n")
        if done.returncode:
            raise CannotError(f"{what} failed, {self.log} says why")

    def pip(self, what: str, *arguments: str | Path, **environment: str) -> None:
        quiet = ("--disable-pip-version-check", "--quiet")
        self.run(what, self.python, "-m", "pip", *quiet, *arguments, **environment)

    def module(self, name: str) -> Path:
        """Where CuPy has a compiled module."""
        return self.packages / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"

    # ---- what is had from elsewhere

    def install(self) -> None:
        """The environment with CuPy and GT, NVIDIA's headers and NVRTC beside it, and CuPy's sources."""
        venv.create(self.built / "venv", with_pip=True, clear=True)
        self.pip("installing CuPy and GT", "install", *INSTALLED, "--editable", f"{REPOSITORY}[dev]")
        shutil.rmtree(self.built / "toolkit", ignore_errors=True)
        self.pip("installing CUDA's headers", "install", "--no-deps", "--target", self.built / "toolkit", *TOOLKIT)
        shutil.rmtree(self.source, ignore_errors=True)
        # CuPy's setup looks for CUDA even where nothing is to be built, unless it is told that there is none.
        from_source = ("download", "--no-deps", "--no-binary", "cupy", "--dest", self.built, f"cupy=={CUPY}")
        self.pip("downloading CuPy's sources", *from_source, CUPY_INSTALL_USE_STUB="1")
        self.run("unpacking CuPy's sources", "tar", "-xf", f"{self.source.name}.tar.gz", cwd=self.built)

    # ---- what is built

    def compile(self, source: Path, *flags: str) -> Path:
        """An object of one source."""
        target = self.objects / f"{source.stem}.o"
        common = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-w", "-fpermissive")
        self.run(f"compiling {source.name}", "g++", *common, *flags, "-c", source, "-o", target)
        return target

    def link(self, name: str, objects: Iterable[Path], *flags: str) -> None:
        """A library that is found by its name, with symbols of the version that CuPy's modules ask for."""
        versions = self.objects / f"{name}.map"
        versions.write_text(f"{name} {{ global: *; }};\n")
        script = () if name == "libcuda.so.1" else (f"-Wl,--version-script={versions}",)
        command = ("g++", "-shared", *objects, f"-Wl,-soname,{name}", *script, *flags)
        self.run(f"linking {name}", *command, "-o", self.library / name)

    def refusing(self, name: str, functions: Iterable[str]) -> Path:
        """An object with functions that say that they are not there."""
        source = self.objects / f"{name}_rest.c"
        lines = ["#include <stdio.h>", "#pragma GCC visibility push(default)"]
        for function in sorted(functions):
            status = next(value for prefix, value in NOT_SUPPORTED.items() if function.startswith(prefix))
            said = f'fprintf(stderr, "[pretend] {function} is not there\\n");'
            lines.append(f"int {function}({ANSWERED.get(function, f') {{ {said} return {status}; }}')}")
        source.write_text("\n".join([*lines, ""]))
        target = source.with_suffix(".o")
        self.run(f"compiling {source.name}", "g++", "-x", "c", "-fPIC", "-w", "-c", source, "-o", target)
        return target

    def modules(self) -> None:
        """CuPy's modules that are built anew, as C++ and as objects."""
        include = [self.source, self.source / "cupy" / "_core" / "include", self.source / "cupy_backends"]
        include += [HERE / "kernels" / "stand_ins", Path(sysconfig.get_paths()["include"]), *self.cuda]
        include += [self.packages / "numpy" / "_core" / "include"]
        told = ",".join(f"{name}={value}" for name, value in CYTHON.items())
        directives = ("-X", "embedsignature=True", "-X", "c_api_binop_methods=True", "-X", "binding=False")
        for name in REBUILT:
            pyx = f"{name}.pyx"
            cython = (
                self.python,
                "-m",
                "cython",
                "--cplus",
                "-3",
                "-E",
                told,
                *directives,
                "-X",
                "warn.deprecated.IF=False",
            )
            self.run(f"translating {pyx}", *cython, pyx, cwd=self.source)
        flags = [f"-I{folder}" for folder in include]
        sources = [self.source / f"{name}.cpp" for name in REBUILT]
        sources += [source for own in REBUILT.values() for source in own]
        together(lambda source: self.compile(source, *flags), sources)

    def device(self) -> None:
        """CUDA's runtime and driver, with what CuPy's runtime module asks for besides; and that module and the other."""
        flags = [f"-I{folder}" for folder in self.cuda]
        objects = list(together(lambda source: self.compile(source, *flags), sorted((HERE / "device").glob("*.cpp"))))
        wanted = names(self.objects / "runtime.o", "--undefined-only", "cuda")
        here = {name for each in objects for name in names(each, "--defined-only", "cuda")}
        self.link("libcuda.so.1", [*objects, self.refusing("cuda", wanted - here)], "-ldl")
        for name, own in REBUILT.items():
            parts = [self.objects / f"{source.stem}.o" for source in (Path(name), *own)]
            target = self.module(name)
            target.unlink(missing_ok=True)
            self.run(f"linking {target.name}", "g++", "-shared", *parts, *self.runs_on_device(), "-o", target)

    def runs_on_device(self) -> tuple[str, ...]:
        return (f"-L{self.library}", "-l:libcuda.so.1", f"-Wl,-rpath,{self.library}")

    def by_lapack(self) -> tuple[str, ...]:
        """The LAPACK in SciPy's wheel. Raises `CannotError` where SciPy has another."""
        folder = self.packages / "scipy.libs"
        found = next(folder.glob("libscipy_openblas-*.so"), None)
        if found is None:
            raise CannotError(f"SciPy is not of a wheel: there is no LAPACK in {folder}")
        return (str(found), f"-Wl,-rpath,{folder}")

    def libraries(self) -> None:
        """NVRTC, what kernels call, what computes for CuPy, and what refuses."""
        places = {
            "PRETEND_PYTHON": self.python,
            "PRETEND_COMPILER": HERE / "compile_kernel.py",
            "PRETEND_BUILT": self.built,
            "PRETEND_CACHE": self.cache,
        }
        defined = [f'-D{name}="{path}"' for name, path in places.items()]
        folder = HERE / "libraries"
        include = [*(f"-I{each}" for each in self.cuda), f'-DPRETEND_BUILT="{self.built}"']
        self.link("libnvrtc.so.12", [self.compile(folder / "nvrtc.cpp", *defined)])
        self.link("libpretend_special.so", [self.compile(folder / "special.cpp")])
        for name, library in COMPUTING.items():
            parts = together(lambda source: self.compile(source, *include), sorted(folder.glob(f"{name}*.cpp")))
            here = {found for part in parts for found in names(part, "--defined-only", name)}
            rest = self.refusing(name, names(self.module(library.module), "--undefined-only", name) - here)
            besides = self.by_lapack() if library.by_lapack else ()
            self.link(library.file, [*parts, rest], *self.runs_on_device(), *besides)
        for name, library in REFUSING.items():
            self.link(library.file, [self.refusing(name, names(self.module(library.module), "--undefined-only", name))])
        for file in EMPTY:
            self.link(file, [self.refusing(file.partition(".")[0], ())])

    def headers(self) -> None:
        """What stands before kernels, compiled ahead."""
        core = self.packages / "cupy" / "_core" / "include"
        cccl = [core / "cupy" / "_cccl" / part for part in ("libcudacxx", "thrust", "cub")]
        include = [HERE / "kernels", HERE / "kernels" / "stand_ins", core, *cccl, self.cuda[0]]

        def ahead(name: str) -> None:
            command = ("g++", *FLAGS, "-x", "c++-header", *(f"-I{each}" for each in include))
            self.run(
                f"compiling {name}", *command, HERE / "kernels" / name, "-o", self.built / "headers" / f"{name}.gch"
            )

        together(ahead, ["with_cupy.h", "without_cupy.h"])

    def place(self) -> None:
        """Put all where CuPy looks for it, and say what every process that uses it needs to be told."""
        nvidia = self.packages / "nvidia"
        shutil.rmtree(nvidia, ignore_errors=True)
        own = {name: {library.file: library.file} for name, library in {**COMPUTING, **REFUSING}.items()}
        for folder, files in [*FOUND_AT.items(), *own.items()]:
            (nvidia / folder / "lib").mkdir(parents=True, exist_ok=True)
            for name, target in files.items():
                (nvidia / folder / "lib" / name).symlink_to(self.library / target)
        (nvidia / "cuda_runtime" / "include").symlink_to(self.cuda[0])
        for other in self.cache.parent.glob("*"):
            if other != self.cache:
                shutil.rmtree(other)
        self.cache.mkdir(parents=True, exist_ok=True)
        # CUB in CuPy's own modules was compiled for cards. What `make torch` installed is to be found, behind all else.
        told = {"CUPY_ACCELERATORS": "", "CUPY_CACHE_DIR": str(self.cache / "cupy")}
        lines = [f"import os; os.environ.setdefault({name!r}, {value!r})" for name, value in told.items()]
        lines.append(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})")
        (self.packages / "zz_pretend.pth").write_text("\n".join([*lines, ""]))

    def check(self) -> None:
        """The device computes."""
        program = "import cupy; assert cupy.arange(5).sum() == 10, cupy.arange(5)"
        self.run("computing on the pretend device", self.python, "-c", program)


def together(work: Callable[[Any], Any], jobs: Iterable[Any]) -> list[Any]:
    """What work gives for each job, as many at the same time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, jobs))


def names(path: Path, which: str, prefix: str) -> set[str]:
    """The symbols of an object or a module that begin so, without their versions."""
    dynamic = () if path.suffix == ".o" else ("--dynamic",)
    listed = subprocess.run(["nm", *dynamic, which, path], capture_output=True, text=True, check=True).stdout
    found = {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.strip()}
    return {name for name in found if name.startswith(prefix)}


def kernel_sources() -> Iterator[Path]:
    """What the meaning of a compiled kernel depends on."""
    yield HERE / "compile_kernel.py"
    yield from sorted((HERE / "kernels").rglob("*.h"))


def digest(paths: Iterable[Path], *besides: str) -> str:
    """What all these say, and where they are, in 16 letters."""
    hashed = hashlib.sha256("\n".join(besides).encode())
    for path in paths:
        hashed.update(f"{path}\n".encode() + path.read_bytes())
    return hashed.hexdigest()[:16]


def missing() -> str:
    """What is not there that pip cannot bring; empty when all is."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "it is for Linux on x86-64"
    absent = [tool for tool in ("g++", "nm", "tar") if shutil.which(tool) is None]
    if absent:
        return f"there is no {' and no '.join(absent)}"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's headers are not there"
    return ""


def build(built: Path) -> None:
    """All that is not there yet. Raises `CannotError`."""
    why = missing()
    if why:
        raise CannotError(why)
    built.mkdir(parents=True, exist_ok=True)
    making = Build(built)
    installed, done = built / ".installed", built / ".built"
    wanted = digest([REPOSITORY / "pyproject.toml"], sys.version, str(built), *INSTALLED, *TOOLKIT)
    if not installed.exists() or installed.read_text() != wanted:
        print(f"getting CuPy, its sources, and CUDA's headers into {built} (once)", flush=True)
        installed.unlink(missing_ok=True)
        done.unlink(missing_ok=True)
        making.log.unlink(missing_ok=True)
        making.install()
        installed.write_text(wanted)
    sources = sorted(path for path in HERE.rglob("*") if path.suffix in (".py", ".cpp", ".h"))
    wanted = digest(sources, wanted)
    if done.exists() and done.read_text() == wanted:
        return
    print("building the pretend device", flush=True)
    done.unlink(missing_ok=True)
    for folder in (making.library, making.objects, built / "headers"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for step in (making.modules, making.device, making.libraries, making.headers, making.place, making.check):
        step()
    done.write_text(wanted)


def main() -> int:
    """Build in the folder that the argument names; 1, and one line that says why, where that cannot be."""
    try:
        build(Path(sys.argv[1]).absolute())
    except CannotError as why:
        print(f"the pretend device cannot be built: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
