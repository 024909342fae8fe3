"""Compile one CUDA source for the pretend device: the real NVRTC judges it, then g++ makes a shared object with its kernels.

libraries/nvrtc.cpp calls it as a program of its own, so it imports nothing but the standard library. What lies at the stem it
is told: the source (.cu), options and the expressions by which kernels are asked for (.told); what it makes there: the
object (.so), or why there is none (.log). A source that NVRTC refuses is refused, whatever g++ says; what NVRTC makes of one
that it takes is thrown away.
"""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
"""The headers that stand for CUDA's words."""

DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\w+\)\s*)?([\w:<>,\s]+?)\s+(\w+)\s*\[\s*\]\s*;")
"""Shared memory whose size is said at the launch."""
ASSEMBLY = re.compile(r'asm(?:\s+volatile)?\(\s*"([^"]+)"\s*:\s*"=\w"\((\w+)\)\s*:\s*"\w"\((\w+)\)\s*\)\s*;')
"""One instruction of the card with one result and one operand."""
INSTRUCTIONS = {
    "cvt.f32.f16": "pretend_from_half({})",
    "cvt.rn.f16.f32": "pretend_to_half((float){})",
    "cvt.rn.f16.f64": "pretend_to_half_d({})",
}
BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
KERNEL = re.compile(rf"__global__\s+{BOUNDS}void\s+{BOUNDS}(\w+)\s*\(")
TEMPLATE = re.compile(r"template\s*<[^;{}]*>$")
WAITING = re.compile(r"__sync|__shfl|__ballot|__any_sync|__all_sync|_REDUCE|cub::|cooperative")
"""What shows that threads wait for each other."""
FLAGS = ["-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-std=c++17", "-w", "-fpermissive"]
"""As CUDA computes: integers wrap around. No product is joined with a sum: cards do, with roundings of their own."""
FLAGS += ["-fvisibility=hidden", "-O1"]
"""With -O1 kernels take a quarter longer to compile, and a third of the time to run."""
LONGEST_LOG = 20000
NVRTC = Path("toolkit/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
"""The real one, where build.py put it."""


def refusal(nvrtc: Path, source: str, options: list[str], names: list[str]) -> str | None:
    """What the real NVRTC says against a source, or nothing."""
    library = ctypes.CDLL(str(nvrtc))
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    for name in names:
        library.nvrtcAddNameExpression(program, name.encode())
    told = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    if not library.nvrtcCompileProgram(program, len(options), told):
        return None
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def on_host(match: re.Match[str]) -> str:
    """An instruction of the card in C++, where it has a row in the table."""
    text, out, operand = match.groups()
    name = text.split(" ")[0]
    return f"{out} = {INSTRUCTIONS[name].format(operand)};" if name in INSTRUCTIONS else match.group(0)


def kernels(source: str) -> list[str]:
    """The kernels that are no templates, by their names."""
    plain = [match[1] for match in KERNEL.finditer(source) if not TEMPLATE.search(source[: match.start()].rstrip())]
    return list(dict.fromkeys(plain))


def translated(source: str, names: list[str], *, turns: bool) -> str:
    """What g++ compiles: the source behind the header that it needs, before the table of its kernels."""
    header = "with_cupy.h" if "cupy/" in source or "#include" in source else "without_cupy.h"
    entries = {name: f"&{name}" for name in kernels(source)}
    if names:
        entries = {f"pretend_name_{index}": name for index, name in enumerate(names)}
    rows = [f'    pretend_kernel<{each}, {str(turns).lower()}>::entry("{name}"),' for name, each in entries.items()]
    table = 'extern "C" __attribute__((visibility("default"))) pretend_entry pretend_table[] = {'
    source = DYNAMIC.sub(r"\1* \2 = (\1*)pretend_shared;", source)
    source = ASSEMBLY.sub(on_host, source)
    return "\n".join([f'#include "{header}"', source, table, *rows, "    {0, 0, 0, 0}};", ""])


def compile_kernel(built: Path, stem: str, own: str) -> str:
    """Make the object of what lies at a stem and ends with `own`, with what build.py put into `built`; why not, or nothing."""
    source = Path(f"{stem}.cu{own}").read_text()
    told = Path(f"{stem}.told{own}").read_text().splitlines()
    options = [line[1:] for line in told if line.startswith("O")]
    names = [line[1:] for line in told if line.startswith("N")]
    said = refusal(built / NVRTC, source, options, names)
    if said is not None:
        return f"the real NVRTC refuses\n{said}\n{source}"
    turns = bool(WAITING.search(source))
    written, made = Path(f"{stem}{own}.cpp"), Path(f"{stem}{own}.so")
    written.write_text(translated(source, names, turns=turns))
    folders = [built / "headers", KERNELS, KERNELS / "stand_ins"]
    command = ["g++", "-shared", *FLAGS, *(f"-I{folder}" for folder in folders)]
    command += [option for option in options if option.startswith(("-I", "-D"))]
    command += [str(written), f"-L{built / 'lib'}", "-lpretend_special", f"-Wl,-rpath,{built / 'lib'}", "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"g++ refuses\n{' '.join(command)}\n{done.stderr[:LONGEST_LOG]}\n{source}"
    written.unlink()
    for suffix in (".cu", ".told"):
        Path(f"{stem}{suffix}{own}").replace(f"{stem}{suffix}")
    made.replace(f"{stem}.so")  # last, since it says that all is there
    return ""


def main() -> int:
    """By the arguments: where build.py built, the stem, and how the files of this call end."""
    built, stem, own = sys.argv[1:]
    why = compile_kernel(Path(built), stem, own)
    if why:
        Path(f"{stem}.log").write_text(why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
