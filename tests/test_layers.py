"""The layers: which module may import what. Read from the sources, so that what nobody runs is checked too."""

import ast
import functools
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

FLOOR = "gt.errors"
"""Modules of the package `gt` itself that all others may import: errors, bounds, and how the default session is started."""
FLOOR_MODULES = {"gt.errors", "gt.bounds", "gt.bounded_msgpack", "gt.default_session", "gt.turns"}

# fmt: off
PACKAGES = {
    # shared
    "gt.sharding": (),
    "gt.ir": ("gt.sharding",),
    "gt.op_packages": ("gt.ir",),
    "gt.snapshot_files": ("gt.ir",),
    "gt.daemon": (),
    "gt.unix_sockets": ("gt.daemon",),
    "gt.wire.messages": (),
    "gt.wire.shared_memory": ("gt.daemon",),
    "gt.wire": ("gt.unix_sockets", "gt.wire.messages", "gt.wire.shared_memory"),
    "gt.standby": ("gt.wire",),
    "gt.public_api": (),
    "gt.native": (),
    "gt.instruction_log": ("gt.op_packages", "gt.wire"),
    # client
    "gt.client.segment": ("gt.ir", "gt.wire"),
    "gt.client.session": ("gt.client.segment", "gt.instruction_log", "gt.standby"),
    "gt.client.tensor": ("gt.client.session",),
    "gt.client.ops": ("gt.client.tensor",),
    "gt.client.ops.spectral": ("gt.client.ops",),
    "gt.client.ops.linalg": ("gt.client.ops",),
    "gt.client.functional": ("gt.client.ops.linalg",),
    "gt.client.autograd.rules": ("gt.client.functional",),
    "gt.client.torch_compat": ("gt.client.functional",),
    "gt.client.autograd": ("gt.client.torch_compat",),
    "gt.client.tensor_api": (
        "gt.client.autograd", "gt.client.ops.spectral", "gt.public_api",
    ),
    "gt.client.array_api": ("gt.client.tensor_api",),
    "gt.client": ("gt.client.array_api", "gt.client.autograd.rules"),
    "gt.client.nn": ("gt.client.autograd",),
    "gt.client.optim": ("gt.client.nn",),
    "gt.client.data": ("gt.client.tensor_api",),
    "gt.client.io": ("gt.client.optim", "gt.snapshot_files"),
    "gt.client.distributions": ("gt.client.autograd",),
    "gt.client.compile": ("gt.client.optim",),
    # dispatcher
    "gt.dispatcher.usage": (),
    "gt.dispatcher.cost": ("gt.dispatcher.usage", "gt.ir"),
    "gt.dispatcher.planner": ("gt.dispatcher.cost", "gt.op_packages"),
    "gt.dispatcher.pacing": ("gt.dispatcher.usage",),
    "gt.dispatcher.pacing_simulator": ("gt.dispatcher.pacing",),
    "gt.dispatcher.limits": ("gt.sharding",),
    "gt.dispatcher.publishing": ("gt.ir", "gt.wire"),
    "gt.dispatcher.state": (
        "gt.dispatcher.limits", "gt.dispatcher.pacing", "gt.dispatcher.planner", "gt.dispatcher.publishing",
    ),
    "gt.dispatcher.telemetry": ("gt.dispatcher.state",),
    "gt.dispatcher.jobs": ("gt.dispatcher.state",),
    "gt.dispatcher.session_plans": ("gt.dispatcher.jobs",),
    "gt.dispatcher.session_meshes": ("gt.dispatcher.session_plans", "gt.snapshot_files"),
    "gt.dispatcher.handlers": ("gt.dispatcher.session_meshes", "gt.dispatcher.telemetry"),
    "gt.dispatcher.operators": ("gt.dispatcher.handlers",),
    "gt.dispatcher": ("gt.dispatcher.operators", "gt.dispatcher.pacing_simulator", "gt.instruction_log"),
    # worker
    "gt.worker.device": ("gt.ir", "gt.wire"),
    "gt.worker.nccl": ("gt.worker.device",),
    "gt.worker.torch_device": ("gt.worker.device",),
    "gt.worker.base": ("gt.op_packages", "gt.worker.nccl", "gt.worker.torch_device"),
    "gt.worker.lifecycle": ("gt.worker.base",),
    "gt.worker.snapshots": ("gt.worker.base", "gt.snapshot_files"),
    "gt.worker.element_loops": (),
    "gt.worker.kernels.cuda": ("gt.ir",),
    "gt.worker.kernels": ("gt.worker.base", "gt.worker.element_loops", "gt.worker.kernels.cuda"),
    "gt.worker.op_table": ("gt.worker.kernels",),
    "gt.worker.torch_kernels": ("gt.worker.op_table",),
    "gt.worker.transfer": ("gt.worker.base",),
    "gt.worker.spill": ("gt.worker.device",),
    "gt.worker.program": ("gt.worker.spill", "gt.worker.torch_kernels", "gt.worker.transfer"),
    "gt.worker.memory_limit": ("gt.worker.program",),
    "gt.worker.fusion": ("gt.worker.base",),
    "gt.worker.fusion.cpu": ("gt.worker.fusion", "gt.worker.program"),
    "gt.worker.fusion.cuda": ("gt.worker.fusion", "gt.worker.op_table"),
    "gt.worker.cuda_graphs": ("gt.worker.fusion.cuda", "gt.worker.program"),
    "gt.worker.telemetry": ("gt.worker.program",),
    "gt.worker.execution": (
        "gt.worker.cuda_graphs", "gt.worker.fusion.cpu", "gt.worker.memory_limit", "gt.worker.telemetry",
    ),
    "gt.worker": ("gt.standby", "gt.worker.execution", "gt.worker.lifecycle", "gt.worker.snapshots"),
    # monitor
    "gt.monitor": ("gt.instruction_log",),
    "gt.monitor.top": ("gt.monitor",),
    # above the rooms
    "gt.ray": ("gt.monitor",),
    "gt.service": ("gt.client", "gt.client.compile", "gt.dispatcher", "gt.ray", "gt.worker"),
    "gt.op_samples": ("gt.ir",),
    "gt.tools": ("gt.native", "gt.op_samples", "gt.service"),
    "gt.conformance": ("gt.service",),
    "gt.deploy": (),
    "gt.commands.shared": (),
    "gt.commands.operator": ("gt.commands.shared", "gt.deploy", "gt.service"),
    "gt.commands": ("gt.commands.operator", "gt.conformance", "gt.monitor.top", "gt.tools"),
}
# fmt: on
"""What each package may import: these packages, and what these may import. Anything may import `gt.errors`.

All other packages of `gt` are its public face, which may import everything, and which nothing else imports.
"""

CORES = (
    "client/segment/builder.py", "client/segment/definition_cache.py", "client/segment/open_segment.py",
    "client/segment/signature.py", "client/segment/value.py", "dispatcher/core.py", "dispatcher/handlers/",
    "dispatcher/invariants.py", "dispatcher/jobs/", "dispatcher/membership.py", "dispatcher/message_table.py",
    "dispatcher/session_meshes/", "dispatcher/session_plans/", "dispatcher/upkeep.py",
    "dispatcher/operators/", "dispatcher/state/shared_state.py", "worker/core.py",
    "worker/message_table.py", "worker/plan_run.py", "worker/snapshot_messages.py",
)  # fmt: skip
"""Pure state machines: a module, or all of a folder. Messages and the time go in, messages come out."""
NOT_IN_A_CORE = {"asyncio", "concurrent", "datetime", "multiprocessing", "os", "queue", "sched", "select", "selectors"}
NOT_IN_A_CORE |= {"signal", "socket", "socketserver", "subprocess", "threading", "time", "zmq"}
OWNERS = {
    "cupy": "worker/base/backend.py",
    "cupyx": "worker/base/backend.py",
    "pydantic": "gt/sharding/config.py",
    "yaml": "gt/sharding/yaml_document.py",
    "zmq": "gt/wire/transport.py",
}
"""What only one module may name."""
MAX_MODULES = 20
"""Modules of one package, without `__init__` and `__main__`."""
LIKE_TORCH = {"gt.client.nn"}
"""Packages that follow one of PyTorch's, however many modules that has."""


class Import(NamedTuple):
    """One name that a module imports: absolute, with its line, and whether importing the module imports it, or nothing does."""

    name: str
    line: int
    on_import: bool
    for_types: bool = False


class Module(NamedTuple):
    """A source file, its dotted name, and everything that it imports."""

    path: str
    name: str
    imports: tuple[Import, ...]


def read(path: str, name: str, source: str) -> Module:
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    return Module(path, name, tuple(find(ast.parse(source), package, on_import=True, for_types=False)))


def find(node: ast.AST, package: str, *, on_import: bool, for_types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, on_import, for_types)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, *([base] if base else [])])
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, on_import, for_types)
    for field, value in ast.iter_fields(node):
        children = [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field == "body"
        types_only = isinstance(node, ast.If) and field == "body" and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in children:
            if isinstance(child, ast.expr):  # most of any source, and without a statement in it
                continue
            known = on_import and not deferred and not types_only
            yield from find(child, package, on_import=known, for_types=for_types or types_only)


def sources() -> Iterator[Module]:
    for folder, package in FOLDERS.items():
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            parts = path.relative_to(REPOSITORY / folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            yield read(str(path.relative_to(REPOSITORY)), name, path.read_text())


@functools.cache
def modules() -> dict[str, Module]:
    """All modules, by path."""
    return {module.path: module for module in sources()}


@functools.cache
def names() -> dict[str, Module]:
    """All modules, by their dotted names."""
    return {module.name: module for module in modules().values()}


def module_of(name: str) -> str:
    """The module that an imported name is, or is in."""
    return name if name in names() else name.rpartition(".")[0]


def package_of(name: str, path: str = "") -> str:
    """The package of `PACKAGES` that a module is in; `gt` for the public face, `gt.errors` for what all may import."""
    if name in FLOOR_MODULES:
        return FLOOR
    known = path or (names()[name].path if name in names() else "")
    package = name if known.endswith("__init__.py") else name.rpartition(".")[0]
    return package if package in PACKAGES else "gt"


def allowed(package: str) -> set[str]:
    """All packages that a package may import, itself among them."""
    found = {FLOOR, package}
    waiting = [package]
    while waiting:
        for below in PACKAGES[waiting.pop()]:
            if below not in found:
                found.add(below)
                waiting.append(below)
    return found


def told(module: Module, found: Import, why: str) -> str:
    return f"{module.path}:{found.line}: imports {found.name}: {why}"


def packages_import_what_the_table_says(module: Module) -> Iterator[str]:
    package = package_of(module.name, module.path)
    if package in ("gt", FLOOR):
        return
    for found in module.imports:
        if found.for_types or found.name.split(".")[0] not in FOLDERS:
            continue
        other = package_of(module_of(found.name)) if found.name.startswith("gt") else found.name
        if other not in allowed(package):
            yield told(module, found, f"{package} may not import {other}: see PACKAGES in {Path(__file__).name}")


def the_face_is_lazy(module: Module) -> Iterator[str]:
    if module.name == "gt":
        for found in module.imports:
            if found.on_import and package_of(module_of(found.name)) not in ("gt", FLOOR) and found.name in names():
                yield told(module, found, "`import gt` is light: what it offers is imported when it is asked for")


def cores_hold_no_socket_clock_or_thread(module: Module) -> Iterator[str]:
    if not any(module.path == core or (core.endswith("/") and module.path.startswith(core)) for core in CORES):
        return
    for found in module.imports:
        if found.name.split(".")[0] in NOT_IN_A_CORE or found.name.startswith("logging.handlers"):
            yield told(module, found, "a core holds no socket, clock or thread: it is an argument, or its shell's")
        if found.name.startswith("gt.wire.transport"):
            yield told(module, found, "a core returns what is to be sent, its shell sends it")


def one_module_owns_each_foreign_one(module: Module) -> Iterator[str]:
    for found in module.imports:
        owner = OWNERS.get(found.name.split(".")[0])
        if owner is not None and module.path != owner:
            yield told(module, found, f"only {owner} does")


RULES = (
    packages_import_what_the_table_says,
    the_face_is_lazy,
    cores_hold_no_socket_clock_or_thread,
    one_module_owns_each_foreign_one,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_layers(rule: type) -> None:
    assert [line for module in modules().values() for line in rule(module)] == []


def cycles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (strongly connected components, Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in arrows.get(node, ()):
            if target not in order:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in arrows:
        if node not in order:
            visit(node)
    return found


def test_no_modules_import_each_other_in_a_cycle_not_even_lazily() -> None:
    arrows = {
        name: {module_of(found.name) for found in module.imports if not found.for_types} & names().keys() - {name}
        for name, module in names().items()
    }
    assert cycles(arrows) == []


def test_no_packages_may_import_each_other_in_a_cycle() -> None:
    assert cycles({package: set(below) for package, below in PACKAGES.items()}) == []


def test_a_cycle_is_found_whatever_leads_to_it() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}, "e": {"a", "d"}}) == [["b", "c", "d"]]


def test_the_table_lists_the_packages_that_there_are_and_says_nothing_twice() -> None:
    packages = {
        name if path.endswith("__init__.py") else name.rpartition(".")[0] for path, name, _ in modules().values()
    }
    assert set(PACKAGES) <= packages
    shared = {name for name in packages if name.count(".") == 1 and name.split(".")[1] not in ROOMS}
    face = {name for name in shared if name not in PACKAGES}
    assert {name for name in packages if name.split(".")[1:2] and name.split(".")[1] in ROOMS} <= set(PACKAGES)
    assert not face & set(PACKAGES)
    for package, below in PACKAGES.items():
        for name in below:
            others = set().union(*(allowed(other) - {FLOOR} for other in below if other != name))
            assert name not in others, f"{package} may import {name} already by another row"


def test_packages_are_small_and_say_what_is_in_them() -> None:
    for package in PACKAGES:
        inside = [name for name in names() if name.rpartition(".")[0] == package and name not in PACKAGES]
        inside = [name for name in inside if not name.endswith("__main__")]
        assert len(inside) <= MAX_MODULES or package in LIKE_TORCH, f"{package} has {len(inside)} modules"
        path = REPOSITORY / names()[package].path
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} does not say what is in the package"


@pytest.mark.parametrize("path", CORES)
def test_each_core_is_where_the_rules_look_for_it(path: str) -> None:
    assert path in modules() or any(known.startswith(path) for known in modules())


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("client/ops/a.py", "import gt.worker", 0),
        ("client/ops/a.py", "from gt.worker.op_table.op_table import KERNELS", 0),
        ("client/ops/a.py", "from gt import dispatcher", 0),
        ("client/ops/a.py", "from ...worker import kernels", 0),
        ("client/ops/a.py", "def f():\n    from worker import kernels", 0),
        ("client/ops/a.py", "from gt import randn", 0),
        ("client/ops/a.py", "import gt", 0),
        ("client/ops/a.py", "import gt.nn", 0),
        ("client/ops/a.py", "from gt import fft", 0),
        ("client/ops/a.py", "from gt.nn.functional import relu", 0),
        ("client/ops/a.py", "def f():\n    from gt.torch_paths.finder import install", 0),
        ("client/ops/a.py", "from gt.client.functional import losses", 0),
        ("client/tensor/a.py", "def f():\n    from gt.client.ops import arithmetic", 0),
        ("gt/ir/a.py", "def f():\n    from gt.client.tensor import tensor", 0),
        ("gt/__init__.py", "from .client.functional import functional", 1),
        ("worker/core.py", "import time", 2),
        ("dispatcher/core.py", "def f():\n    from os.path import join", 2),
        ("dispatcher/handlers/a.py", "import threading", 2),
        ("client/segment/builder.py", "import logging.handlers", 2),
        ("worker/core.py", "from gt.wire.transport import Socket", 2),
        ("worker/kernels/a.py", "import cupy as cp", 3),
        ("worker/kernels/a.py", "import cupyx.scipy.special", 3),
        ("dispatcher/core.py", "try:\n    import zmq\nexcept ImportError:\n    pass", 3),
    ],
)
def test_a_rule_finds_what_breaks_it(path: str, source: str, rule: int) -> None:
    found = list(RULES[rule](read(path, dotted(path), source)))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")


def dotted(path: str) -> str:
    folder, _, rest = path.partition("/")
    inside = rest.removesuffix(".py").replace("/", ".").removesuffix("__init__").rstrip(".")
    return ".".join([FOLDERS[folder], *([inside] if inside else [])])


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "client/ops/a.py",
            "import numpy\nfrom gt.errors import GTError\nfrom gt import errors\nfrom . import creation\nfrom .c import d",
        ),
        (
            "client/tensor/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gt.client.ops import fft",
        ),
        ("gt/__init__.py", "def __getattr__(name):\n    from .client import functional"),
        ("gt/torch_paths/a.py", "from gt.client.nn import *"),
        ("gt/wire/transport.py", "import zmq, time, threading"),
        ("worker/__main__.py", "import os, socket, threading\nfrom .core import Core"),
        ("worker/base/backend.py", "def f():\n    import cupy"),
    ],
)
def test_no_rule_minds_what_is_allowed(path: str, source: str) -> None:
    assert [line for rule in RULES for line in rule(read(path, dotted(path), source))] == []


def test_import_gt_is_light() -> None:
    program = "import sys; known = set(sys.modules); import gt; print(*sorted(set(sys.modules) - known))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    native, paths = ("gt.native", "gt.native.finder"), ("gt.torch_paths", "gt.torch_paths.finder")
    assert done.stdout.split() == ["gt", "gt.default_session", *native, *paths]


def test_pyproject_maps_every_folder_with_code() -> None:
    setuptools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["package-dir"] == {package: folder for folder, package in FOLDERS.items()}
    packages = {
        name if path.endswith("__init__.py") else name.rpartition(".")[0] for path, name, _ in modules().values()
    }
    assert set(setuptools["packages"]) == packages
