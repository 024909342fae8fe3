"""Builds the compiled form of the modules with Cython and the C compiler that this Python was built with.

    python -m gt.native.build [FOLDER]

The sources are what runs without it: a `.pxd` beside a source declares the C types of its fields, and nothing else is different.
Loops of the worker, each a `.pyx`, have no other form.
Lines that end with "not compiled" make names that the declarations define in C.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final

from .modules import FOLDERS, MANIFEST, MODULES, digests, source

ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder of client and worker."""
NOT_COMPILED: Final = "# not compiled\n"
SUFFIX: Final = EXTENSION_SUFFIXES[0]
LOOPS: Final = tuple(
    f"-X{option}" for option in ("boundscheck=False", "wraparound=False", "initializedcheck=False", "cdivision=True")
)
"""What Cython is told of loops over elements."""
MACHINES: Final = {"x86_64": ["-march=x86-64-v3"]}
"""Options for loops over elements, for processors that have what `worker/element_loops` asks for."""


class BuildError(Exception):
    """Compiled modules cannot be built here; the message says why."""


def build(folder: Path, root: Path = ROOT) -> bool:
    """Builds all modules into `folder`, at once or not at all; False if what is there is from these sources already."""
    manifest = manifest_of(root)
    made = folder / MANIFEST
    before = json.loads(made.read_text()) if made.is_file() else {}
    if before == manifest:
        return False
    with tempfile.TemporaryDirectory(prefix="gt-native-") as scratch:
        tree, out = Path(scratch, "tree"), Path(scratch, "out")
        out.mkdir()
        _copy(root, tree / "gt")
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            left = [module for module in MODULES if not _copied(module, folder, out, before, manifest)]
            list(threads.map(lambda module: _compile(module, tree, out), left))
        (out / MANIFEST).write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(out, folder)
    return True


def manifest_of(root: Path) -> dict[str, Any]:
    """What is to be built: for which Python, of which modules, from which sources, and by which recipe."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return {"suffix": SUFFIX, "recipe": recipe, "modules": list(MODULES), "sources": digests(root)}


def _copied(module: str, folder: Path, out: Path, before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Copies a module that was compiled before from the same source and declarations; returns whether there was one."""
    own = str(source(module, Path()))
    seen = [
        {path: digest for path, digest in manifest.get("sources", {}).items() if path == own or path.endswith(".pxd")}
        for manifest in (before, now)
    ]
    file = folder / f"{module}{SUFFIX}"
    alike = all(before.get(name) == now[name] for name in ("suffix", "recipe"))
    if not alike or seen[0] != seen[1] or not file.is_file():
        return False
    shutil.copy2(file, out)
    return True


def _copy(root: Path, to: Path) -> None:
    """The packages of the modules as the compiler is to see them."""
    for folder in {source(module, root).parent for module in MODULES}:
        copied = to / folder.relative_to(root)
        copied.mkdir(parents=True, exist_ok=True)
        for parent in copied.relative_to(to.parent).parents:
            if parent.name:
                (to.parent / parent / "__init__.py").touch()
        for path in (*folder.glob("*.py"), *folder.glob("*.pxd"), *folder.glob("*.pyx")):
            text = path.read_text()
            (copied / path.name).write_text(as_compiled(text) if path.suffix == ".py" else text)


def as_compiled(text: str) -> str:
    """A source as the compiler is to see it: without lines that are not compiled, and without what is said of arguments.

    Annotations of arguments would be held at every call, and strictly: a subclass of `tuple` or `type`, or 1 for a bool, would be
    refused. Those of local variables stay.
    """
    lines = ["\n" if line.endswith(NOT_COMPILED) else line for line in text.splitlines(keepends=True)]
    tree = ast.parse("".join(lines))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            for argument in (*every, node.args.vararg, node.args.kwarg):
                if argument is not None and argument.annotation is not None:
                    _blank(
                        lines, argument.lineno, argument.col_offset + len(argument.arg.encode()), argument.annotation
                    )
    return "".join(lines)


def _blank(lines: list[str], first: int, begin: int, until: ast.expr) -> None:
    """Puts spaces from a place, counted in bytes, to the end of an expression."""
    last, end = until.end_lineno or first, until.end_col_offset or 0
    for number in range(first, last + 1):
        raw = lines[number - 1].encode()
        start = begin if number == first else 0
        stop = end if number == last else len(raw) - 1
        lines[number - 1] = (raw[:start] + b" " * (stop - start) + raw[stop:]).decode()


def _compile(module: str, tree: Path, out: Path) -> None:
    path = source(module, tree / "gt")
    written = path.with_suffix(".c")
    typed = path.with_suffix(".pxd").is_file()
    # where nothing is declared, annotations are comments: a float keeps being the object that it is
    options = ["-3", "-X", f"annotation_typing={typed}", "-X", "infer_types=False"]
    optimized = ["-O2"]
    if path.suffix == ".pyx":  # what is not contracted has the bits of NumPy's calls
        import numpy as np

        options = ["-3", *LOOPS]
        optimized = ["-O3", "-ffp-contract=off", *MACHINES.get(platform.machine(), []), f"-I{np.get_include()}"]
    _run([sys.executable, "-m", "cython", *options, str(path.relative_to(tree)), "-o", str(written)], tree)
    known = sysconfig.get_config_vars()
    flags = shlex.split(f"{known['CCSHARED']} -DNDEBUG -fwrapv -w -I{sysconfig.get_path('include')}")
    compiler = shlex.split(os.environ.get("CC") or known["CC"])
    _run([*compiler, "-shared", *flags, *optimized, "-o", str(out / f"{module}{SUFFIX}"), str(written)], tree)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 — the compilers
    except OSError as error:
        raise BuildError(f"there is no {command[0]} here: {error}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def main(arguments: list[str]) -> int:
    """Builds into a folder, by default that of `make native`."""
    folder = Path(arguments[0]) if arguments else FOLDERS[-1]
    try:
        fresh = build(folder)
    except BuildError as error:
        sys.stderr.write(f"the compiled modules were not built, so the sources run: {error}\n")
        return 1
    sys.stdout.write(f"{folder} {'holds' if fresh else 'already held'} the compiled form of {len(MODULES)} modules\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
