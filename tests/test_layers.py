"""The layers: which module may import what. Read from the sources, so that what nobody runs is checked too."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parent.parent
ROOMS = ("client", "dispatcher", "monitor", "worker")
FOLDERS = {"gt": "gt", **{room: f"gt.{room}" for room in ROOMS}}

CORES = (
    "client/definitions.py", "client/segment.py", "client/signature.py", "client/value.py",
    "dispatcher/admission.py", "dispatcher/core.py", "dispatcher/fetching.py", "dispatcher/joining.py",
    "dispatcher/leaving.py", "dispatcher/meshes.py", "dispatcher/preparing.py",
    "dispatcher/running.py", "dispatcher/service.py", "dispatcher/streams.py", "dispatcher/turns.py",
    "dispatcher/waiting.py", "worker/core.py",
)  # fmt: skip
# Messages and the time go into a core, messages come out.
NOT_IN_A_CORE = {"asyncio", "concurrent", "datetime", "multiprocessing", "os", "queue", "sched", "select", "selectors"}
NOT_IN_A_CORE |= {"signal", "socket", "socketserver", "subprocess", "threading", "time", "zmq"}
# What only one module may name.
OWNERS = {
    "cupy": "worker/backend.py",
    "cupyx": "worker/backend.py",
    "pydantic": "gt/config.py",
    "yaml": "gt/document.py",
    "zmq": "gt/transport.py",
}
# The public face and the command line may reach into rooms; these when they are asked to, never on import.
COMMANDS = tuple(sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("gt/commands/*.py")))
LAZY = ("gt/__init__.py", "gt/cuda/__init__.py", *COMMANDS)
ALIASES = (
    "gt/array_api/__init__.py",
    "gt/array_api/fft.py",
    "gt/array_api/linalg.py",
    "gt/fft.py",
    "gt/linalg.py",
    "gt/distributions/__init__.py",
    "gt/distributions/constraints.py",
    "gt/distributions/kl.py",
    "gt/distributions/transforms.py",
    "gt/random.py",
    "gt/special.py",
    "gt/nn/__init__.py",
    "gt/nn/functional.py",
    "gt/nn/init.py",
    *sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("gt/nn/modules/*.py")),
    "gt/nn/parallel.py",
    "gt/nn/parameter.py",
    "gt/nn/utils/__init__.py",
    "gt/nn/utils/fusion.py",
    "gt/nn/utils/parametrizations.py",
    "gt/nn/utils/parametrize.py",
    "gt/nn/utils/rnn.py",
    "gt/optim/__init__.py",
    "gt/amp.py",
    "gt/cuda/amp.py",
    "gt/data.py",
)
DERIVATIVES = (*sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("gt/autograd/*.py")), "gt/func.py")
RECOMPUTATION = (
    "gt/utils/__init__.py",
    "gt/utils/checkpoint.py",
    *sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("gt/utils/data/*.py")),
)
STARTERS = ("gt/session.py", "gt/inventory.py", "gt/inproc.py", "gt/launch.py", "gt/profiling.py")
EXPLAINERS = ("gt/explaining.py", "gt/explanation.py", "gt/rendering.py", "gt/search.py", "gt/shadow.py")
FACE = (
    *LAZY,
    *ALIASES,
    *DERIVATIVES,
    *RECOMPUTATION,
    *STARTERS,
    *EXPLAINERS,
    "gt/__main__.py",
    "gt/doctor.py",
    "gt/replaying.py",
    "gt/optim/lr_scheduler.py",
    "gt/optim/swa_utils.py",
    "gt/signal/__init__.py",
    "gt/signal/windows.py",
    "gt/masked.py",
)
# The two ways back: a program's first operation starts the default session, and a tensor names the Array API's namespace.
# Both are the public face's business.
WAYS_BACK = (("client/session.py", "gt.session.init"), ("client/tensor.py", "gt.array_api"))


class Import(NamedTuple):
    """One name that a module imports: absolute, with its line, and whether importing the module imports it."""

    name: str
    line: int
    on_import: bool


class Module(NamedTuple):
    """A source file, its dotted name, and everything that it imports."""

    path: str
    name: str
    imports: tuple[Import, ...]


def read(path: str, name: str, source: str) -> Module:
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    return Module(path, name, tuple(find(ast.parse(source), package, on_import=True)))


def find(node: ast.AST, package: str, *, on_import: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, on_import)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, *([base] if base else [])])
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, on_import)
    for field, value in ast.iter_fields(node):
        children = [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field == "body"
        types_only = isinstance(node, ast.If) and field == "body" and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in children:
            if isinstance(child, ast.expr):  # most of any source, and without a statement in it
                continue
            yield from find(child, package, on_import=on_import and not deferred and not types_only)


def sources() -> Iterator[Module]:
    for folder, package in FOLDERS.items():
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            parts = path.relative_to(REPOSITORY / folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            yield read(str(path.relative_to(REPOSITORY)), name, path.read_text())


MODULES = {module.path: module for module in sources()}
NAMES = {module.name for module in MODULES.values()}


def room_of(name: str) -> str | None:
    """The room that a dotted name lies in: 'gt.client.core' lies in 'client'."""
    parts = name.split(".")
    return parts[1] if parts[0] == "gt" and len(parts) > 1 and parts[1] in ROOMS else None


def told(module: Module, found: Import, why: str) -> str:
    return f"{module.path}:{found.line}: imports {found.name}: {why}"


def rooms_import_shared_modules_and_themselves(module: Module) -> Iterator[str]:
    room = room_of(module.name)
    for found in module.imports:
        if room is None or found.name.split(".")[0] not in FOLDERS or room_of(found.name) == room:
            continue
        if (module.path, found.name) in WAYS_BACK and not found.on_import:
            continue
        # What is not a module is a name in one.
        imported = found.name if found.name in NAMES else found.name.rpartition(".")[0]
        if room_of(found.name) or found.name.split(".")[0] in ROOMS:
            yield told(module, found, "rooms never import each other, what passes between them is instructions")
        elif imported == "gt" or imported.replace(".", "/") + ".py" in FACE:
            yield told(module, found, "a room imports shared modules (from gt.errors import …), never the public face")


def shared_modules_know_no_room(module: Module) -> Iterator[str]:
    if room_of(module.name):
        return
    for found in module.imports:
        if room_of(found.name) and module.path not in FACE:
            yield told(module, found, "what all rooms share knows none of them")
        if room_of(found.name) and module.path in LAZY and found.on_import:
            yield told(module, found, "the public face reaches into a room lazily, in a function")


def cores_hold_no_socket_clock_or_thread(module: Module) -> Iterator[str]:
    for found in module.imports:
        top = found.name.split(".")[0]
        if module.path in CORES and (top in NOT_IN_A_CORE or found.name.startswith("logging.handlers")):
            yield told(module, found, "a core holds no socket, clock or thread: it is an argument, or its shell's")
        if module.path in CORES and found.name.startswith("gt.transport"):
            yield told(module, found, "a core returns what is to be sent, its shell sends it")


def one_module_owns_each_foreign_one(module: Module) -> Iterator[str]:
    for found in module.imports:
        owner = OWNERS.get(found.name.split(".")[0])
        if owner is not None and module.path != owner:
            yield told(module, found, f"only {owner} does")


RULES = (
    rooms_import_shared_modules_and_themselves,
    shared_modules_know_no_room,
    cores_hold_no_socket_clock_or_thread,
    one_module_owns_each_foreign_one,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_layers(rule: type) -> None:
    assert [line for module in MODULES.values() for line in rule(module)] == []


@pytest.mark.parametrize("path", CORES)
def test_each_core_is_where_the_rules_look_for_it(path: str) -> None:
    assert path in MODULES


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("client/a.py", "import gt.worker", 0),
        ("client/a.py", "from gt.worker.kernels import KERNELS", 0),
        ("client/a.py", "from gt import dispatcher", 0),
        ("client/a.py", "from ..worker import kernels", 0),
        ("client/a.py", "def f():\n    from worker import kernels", 0),
        ("client/a.py", "from gt import randn", 0),
        ("client/a.py", "import gt", 0),
        ("gt/errors.py", "def f():\n    from .client import tensor", 1),
        ("gt/__init__.py", "from .client.functional import randn", 1),
        ("gt/commands/app.py", "import gt.dispatcher", 1),
        ("worker/core.py", "import time", 2),
        ("dispatcher/core.py", "def f():\n    from os.path import join", 2),
        ("client/segment.py", "import logging.handlers", 2),
        ("worker/core.py", "from gt.transport import Socket", 2),
        ("worker/kernels.py", "import cupy as cp", 3),
        ("worker/kernels.py", "import cupyx.scipy.special", 3),
        ("dispatcher/core.py", "try:\n    import zmq\nexcept ImportError:\n    pass", 3),
    ],
)
def test_a_rule_finds_what_breaks_it(path: str, source: str, rule: int) -> None:
    folder, _, rest = path.partition("/")
    name = ".".join([FOLDERS[folder], *([] if rest == "__init__.py" else [rest.removesuffix(".py")])])
    found = list(RULES[rule](read(path, name, source)))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "client/a.py",
            "import numpy\nfrom gt.errors import GTError\nfrom gt import errors\nfrom . import b\nfrom .c import d",
        ),
        ("gt/__init__.py", "def __getattr__(name):\n    from .client import functional"),
        (
            "gt/__init__.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .client.functional import randn",
        ),
        ("gt/transport.py", "import zmq, time, threading"),
        ("worker/__main__.py", "import os, socket, threading\nfrom .core import Core"),
        ("worker/backend.py", "def f():\n    import cupy"),
    ],
)
def test_no_rule_minds_what_is_allowed(path: str, source: str) -> None:
    folder, _, rest = path.partition("/")
    name = ".".join([FOLDERS[folder], *([] if rest == "__init__.py" else [rest.removesuffix(".py")])])
    assert [line for rule in RULES for line in rule(read(path, name, source))] == []


def test_import_gt_is_light() -> None:
    program = "import sys, gt; print({'pydantic', 'scipy', 'textual', 'typer', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_pyproject_maps_every_folder_with_code() -> None:
    setuptools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["package-dir"] == {package: folder for folder, package in FOLDERS.items()}
    packages = {name if path.endswith("__init__.py") else name.rpartition(".")[0] for path, name, _ in MODULES.values()}
    assert set(setuptools["packages"]) == packages
