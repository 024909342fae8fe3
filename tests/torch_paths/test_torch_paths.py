"""PyTorch's import paths: what the table promises, what the finder makes of it, and what the stubs tell of it."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import importlib
import importlib.util
import inspect
import io
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from effort import thinned

import gt
from gt.torch_paths import stubs
from gt.torch_paths.finder import TorchPathFinder, install
from gt.torch_paths.table import ALL, PATHS, SAME, children, listed, split

REPOSITORY = Path(__file__).parents[2]


def exported(module: str) -> list[str]:
    return list(importlib.import_module(module).__all__)


def run(program: str, *arguments: str, path: Path = REPOSITORY, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    return importlib.import_module("gt.torch_paths.build_backend")


# the table


@pytest.mark.parametrize("path", PATHS)
def test_each_name_is_in_the_module_that_defines_it(path: str) -> None:
    for name in listed(path, exported):
        assert name.new in children(path) or hasattr(importlib.import_module(name.source), name.old), name


@pytest.mark.parametrize("path", PATHS)
def test_no_name_is_listed_twice(path: str) -> None:
    names = [name.new for name in listed(path, exported)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", PATHS)
def test_the_package_of_each_path_is_a_path(path: str) -> None:
    package = path.rpartition(".")[0]
    assert package == "gt" or package in PATHS


@pytest.mark.parametrize("path", PATHS)
def test_no_file_stands_where_a_path_is(path: str) -> None:
    """The finder goes before that of files, so a file of this name would never be imported."""
    file = REPOSITORY.joinpath(*path.split("."))
    assert not file.with_suffix(".py").exists()
    assert not (file / "__init__.py").exists()


def test_the_public_face_has_every_path_at_the_top() -> None:
    assert {name for name in gt._SUBMODULES if f"gt.{name}" in PATHS} == set(children("gt"))
    assert [name for name in gt._SUBMODULES if f"gt.{name}" not in PATHS] == ["config", "jax", "ops", "torch"]


def test_what_defines_a_path_alone_is_used() -> None:
    used = {source for row in PATHS.values() for source in row.names if source.startswith("gt.torch_paths.")}
    files = {file.stem for file in (REPOSITORY / "gt/torch_paths/modules").glob("*.py")} - {"__init__"}
    assert {f"gt.torch_paths.modules.{name}" for name in files} == used


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        ("Linear", [("Linear", "Linear")]),
        ("Bilinear, Linear", [("Bilinear", "Bilinear"), ("Linear", "Linear")]),
        ("*, _fan as fan", [("*", "*"), ("fan", "_fan")]),
    ],
)
def test_names_are_written_as_in_an_import(names: str, pairs: list[tuple[str, str]]) -> None:
    assert split(names) == pairs


# the modules


@pytest.mark.parametrize("path", PATHS)
def test_a_path_gives_the_names_of_its_row(path: str) -> None:
    module = importlib.import_module(path)
    names = listed(path, exported)
    assert module.__all__ == [name.new for name in names if name.public]
    for new, source, old, _ in names:
        value = getattr(module, new)
        if new in children(path):
            assert value is importlib.import_module(f"{path}.{new}")
        elif PATHS[path].out:
            assert inspect.unwrap(value) is inspect.unwrap(getattr(importlib.import_module(source), old))
        else:
            assert value is getattr(importlib.import_module(source), old)


@pytest.mark.parametrize("path", PATHS)
def test_a_star_import_gives_what_all_lists(path: str) -> None:
    scope: dict[str, object] = {}
    exec(f"from {path} import *", scope)
    assert scope.keys() - {"__builtins__"} == set(importlib.import_module(path).__all__)


@pytest.mark.parametrize("path", [path for path in PATHS if SAME not in PATHS[path].names.values()])
def test_a_path_is_a_module_like_others(path: str) -> None:
    module = importlib.import_module(path)
    spec = module.__spec__
    assert spec is not None
    assert (module.__name__, spec.name, module.__doc__) == (path, path, PATHS[path].doc)
    assert module.__package__ == (path if children(path) else path.rpartition(".")[0])
    assert hasattr(module, "__path__") == bool(children(path))
    assert not hasattr(module, "__file__")
    assert importlib.util.find_spec(path) is spec
    assert inspect.getmodule(module) is module
    assert {*module.__all__, *children(path)} <= {*dir(module)}
    assert repr(module) == f"<module '{path}' (gt.torch_paths)>"


@pytest.mark.parametrize("path", [path for path in PATHS if SAME in PATHS[path].names.values()])
def test_a_path_can_be_another_name_of_a_module(path: str) -> None:
    (source,) = PATHS[path].names
    assert importlib.import_module(path) is importlib.import_module(source)
    assert importlib.import_module(source).__name__ == source


@pytest.mark.parametrize("path", [path for path in PATHS if children(path)])
def test_a_package_has_its_submodules_as_attributes(path: str) -> None:
    module = importlib.import_module(path)
    for name in children(path):
        assert getattr(module, name) is importlib.import_module(f"{path}.{name}")


@pytest.mark.parametrize("path", [path for path, row in PATHS.items() if row.out])
def test_functions_take_out_where_the_row_says_so(path: str) -> None:
    module = importlib.import_module(path)
    names = module.__all__ if PATHS[path].out == ALL else [name for name, _ in split(PATHS[path].out)]
    functions = {name for name in names if isinstance(getattr(module, name), FunctionType)}
    assert functions
    assert {name for name in module.__all__ if getattr(module, name).__module__ == path} == functions


def test_help_shows_what_a_path_has() -> None:
    text = pydoc.plain(pydoc.render_doc("gt.nn.modules.linear"))
    assert "Linear layers." in text
    assert "class Bilinear" in text


ORDERS = {"of the table": "paths", "reversed": "paths[::-1]", "drawn": "random.Random(0).sample(paths, len(paths))"}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_paths_are_imported_in_any_order(order: str) -> None:
    run(f"import importlib, random, sys\npaths = sys.argv[1:]\n[*map(importlib.import_module, {order})]", *PATHS)


def test_any_path_is_imported_first() -> None:
    """Each in a copy of a process that has imported nothing of GT, and only what GT imports."""
    program = """
import importlib, os, sys
import ml_dtypes, msgpack, numpy, safetensors, zmq
for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        done = 1
        try:
            importlib.import_module(path)
            done = 0
        finally:
            os._exit(done)
    assert os.waitpid(child, 0)[1] == 0, path
"""
    run(program, *thinned(list(PATHS), 4))


def test_import_gt_makes_none_of_them() -> None:
    program = """
import sys, gt
print(*sorted({*sys.argv} & sys.modules.keys()))
gt.optim.lr_scheduler.StepLR
print(*sorted({*sys.argv} & sys.modules.keys()))
"""
    said = run(program, "gt.torch_paths.table", *PATHS)
    assert said.splitlines() == ["", "gt.optim gt.optim.lr_scheduler gt.torch_paths.table"]


# the finder


@pytest.mark.parametrize(
    "name", ["gt", "gtx.nn", "gt.client", "gt.torch_paths.table", "gt.nn.layers", "gt.nn.Linear", "nn"]
)
def test_the_finder_answers_for_no_other_name(name: str) -> None:
    assert TorchPathFinder().find_spec(name) is None


@pytest.mark.parametrize("path", PATHS)
def test_the_finder_answers_for_each_path(path: str) -> None:
    spec = TorchPathFinder().find_spec(path)
    assert spec is not None
    assert spec.name == path


def test_the_finder_is_installed_once_and_first_of_those_that_look_for_files() -> None:
    before = [*sys.meta_path]
    install()
    assert sys.meta_path == before
    kinds = [getattr(finder, "__name__", type(finder).__name__) for finder in before]
    assert kinds.count("TorchPathFinder") == 1
    assert kinds.index("TorchPathFinder") < kinds.index("PathFinder")


def test_what_is_no_path_is_an_error_as_elsewhere() -> None:
    for name in ("gt.sparse", "gt.nn.layers", "gt.nn.modules.linear.Linear", "gt.fft.fft"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            importlib.import_module(name)
    with pytest.raises(AttributeError, match=r"^module 'gt.nn' has no attribute 'Liner'$") as error:
        gt.nn.Liner  # noqa: B018
    assert (error.value.name, error.value.obj) == ("Liner", gt.nn)
    with pytest.raises(ImportError, match=r"cannot import name 'Liner' from 'gt\.nn'"):
        exec("from gt.nn import Liner")
    with pytest.raises(AttributeError, match="sparse tensors are not supported"):
        gt.sparse  # noqa: B018


def test_what_a_defining_module_answers_for_a_path_answers_too() -> None:
    assert gt.cuda.FloatTensor is gt.FloatTensor
    with pytest.raises(AttributeError, match="GPUs are the workers'"):
        gt.cuda.streams  # noqa: B018


# the stubs


@pytest.mark.parametrize("path", PATHS)
def test_a_stub_has_the_names_of_its_path(path: str) -> None:
    """It is written from the sources, the module is made from what they are at run time."""
    found: dict[str, tuple[str, str]] = {}
    public: list[str] = []
    for node in ast.parse(stubs.stub(path)).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname or (node.module, alias.name) == ("typing", "Any"), "a stub exports what has an `as`"
                found[alias.asname or ""] = (node.module or "", alias.name)
        elif isinstance(node, ast.Assign):
            public = ast.literal_eval(node.value)
    found.pop("", None)
    inner = children(path)
    expected = {new: (source, old) for new, source, old, _ in listed(path, exported) if new not in inner}
    assert found == expected | {name: ("", name) for name in inner}
    assert public == importlib.import_module(path).__all__


def test_a_stub_says_that_a_module_answers_for_more() -> None:
    answering = {path for path in PATHS if "def __getattr__(name: str) -> Any: ..." in stubs.stub(path)}
    assert answering == {"gt.cuda"}


def test_stubs_are_written_for_exactly_the_paths(tmp_path: Path) -> None:
    stubs.write(tmp_path)
    files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {f"{path.replace('.', '/')}/__init__.pyi" for path in PATHS} == stubs.stubs().keys()


@pytest.mark.parametrize(
    "source",
    [
        "__all__ = ['a', *other.__all__]",
        "__all__ = ('a',) + other.__all__",
        "__all__ = ['a']\n__all__ += other.__all__",
    ],
)
def test_lists_of_names_are_read_from_sources(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text(f"from . import two as other\n{source}")
    (tmp_path / "room" / "two.py").write_text("__all__ = ['b']")
    monkeypatch.setattr(stubs, "_PACKAGE", tmp_path)
    assert stubs._exported.__wrapped__("gt.room.one") == ("a", "b")


@pytest.mark.parametrize(
    ("source", "says"), [("", "gt.room.one has no __all__"), ("__all__ = sorted(names)", "gt.room.one: its __all__")]
)
def test_what_is_no_list_of_names_is_an_error(
    source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text(source)
    monkeypatch.setattr(stubs, "_PACKAGE", tmp_path)
    stubs._parsed.cache_clear()
    try:
        with pytest.raises(ValueError, match=says):
            stubs._exported.__wrapped__("gt.room.one")
    finally:
        stubs._parsed.cache_clear()


PROGRAM = """
import gt.nn.functional as F
import gt.utils.data
from gt.nn.modules.linear import Linear
from gt.optim import lr_scheduler
import gt
reveal_type(gt.nn.Linear())
reveal_type(Linear())
reveal_type(F.relu())
reveal_type(lr_scheduler.StepLR())
reveal_type(gt.nn.modules.batchnorm._BatchNorm())
reveal_type(gt.nn.utils.weight_norm())
reveal_type(gt.cuda.anything)
reveal_type(gt.utils.data.DataLoader())
gt.nn.modules.linear.Conv2d
"""
SEEN = (
    ("gt.nn", "Linear"),
    ("gt.nn.modules.linear", "Linear"),
    ("gt.nn.functional", "relu"),
    ("gt.optim.lr_scheduler", "StepLR"),
    ("gt.nn.modules.batchnorm", "_BatchNorm"),
    ("gt.nn.utils", "weight_norm"),
    None,
    ("gt.data", "DataLoader"),
)
"""What is asked for, by path and name, or None for anything."""


def test_a_type_checker_reads_the_stubs(tmp_path: Path) -> None:
    """The stubs over sources in which every name is a class: to read GT's own takes a type checker half a minute."""
    pytest.importorskip("mypy")
    stubs.write(tmp_path)
    defined: dict[str, set[str]] = {}
    origins: dict[tuple[str, str], str] = {}
    for path in PATHS:
        for name in listed(path, exported):
            if name.source not in PATHS:
                defined.setdefault(name.source, set()).add(name.old)
                origins[path, name.new] = f"{name.source}.{name.old}"
    for source, names in defined.items():
        folder = tmp_path.joinpath(*source.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.pyi").write_text("\n".join(f"class {name}: ..." for name in sorted(names)))
        for package in [*folder.parents][: source.count(".")]:
            (package / "__init__.pyi").touch()
    (tmp_path / "gt/__init__.pyi").write_text("\n".join(f"from . import {name} as {name}" for name in children("gt")))
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    *lines, error, total = done.stdout.splitlines()
    assert [line.partition("Revealed type is ")[2] for line in lines] == [
        f'"{origins[name]}"' if name else '"Any"' for name in SEEN
    ]
    assert 'Module has no attribute "Conv2d"' in error
    assert total.startswith("Found 1 error")


# the build backend


def test_a_wheel_gets_files_and_records_them(backend: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "gt-1-py3-none-any.whl"
    with ZipFile(wheel, "w", ZIP_DEFLATED) as file:
        file.writestr("gt/__init__.py", "pass\n")
        file.writestr("gt-1.dist-info/RECORD", "gt/__init__.py,sha256=x,5\ngt-1.dist-info/RECORD,,\n")
    backend.add(wheel, {"gt/nn/__init__.pyi": "x: int\n", "gt/µ.pyi": "µ: int\n"})
    with ZipFile(wheel) as file:
        assert file.testzip() is None
        assert file.namelist()[-1] == "gt-1.dist-info/RECORD"
        rows = list(csv.reader(io.StringIO(file.read("gt-1.dist-info/RECORD").decode())))
        assert {row[0] for row in rows} == {*file.namelist()}
        assert rows[:2] == [["gt/__init__.py", "sha256=x", "5"], ["gt-1.dist-info/RECORD", "", ""]]
        for name, digest, size in rows[2:]:
            data = file.read(name)
            assert len(data) == int(size)
            kind, _, value = digest.partition("=")
            assert hashlib.new(kind, data).digest() == base64.urlsafe_b64decode(value + "=")


def test_every_hook_of_a_build_backend_is_there(backend: ModuleType) -> None:
    pytest.importorskip("setuptools")
    for kind in ("sdist", "wheel", "editable"):
        assert callable(getattr(backend, f"build_{kind}"))
        assert callable(getattr(backend, f"get_requires_for_build_{kind}"))


WHERE = "import gt, gt.client.nn; print(gt.__file__, gt.nn.Linear is gt.client.nn.Linear)"


def test_a_tree_with_stubs_runs_as_the_sources_do(backend: ModuleType, tmp_path: Path) -> None:
    """Folders of stubs are not taken for packages."""
    backend.source_tree(tmp_path / "tree")
    said = run(WHERE, path=tmp_path, PYTHONPATH=str(tmp_path / "tree"))
    assert said == f"{tmp_path / 'tree/gt/__init__.py'} True\n"


def test_the_tree_for_editors_leads_a_program_to_the_sources(backend: ModuleType, tmp_path: Path) -> None:
    backend.editor_tree(tmp_path / "tree")
    assert run(WHERE, path=tmp_path, PYTHONPATH=str(tmp_path / "tree")) == f"{REPOSITORY / 'gt/__init__.py'} True\n"
    tree = tmp_path / "tree" / "gt"
    assert (tree / "__init__.pyi").resolve() == REPOSITORY / "gt/__init__.py"
    assert (tree / "client/nn/linear.py").resolve() == REPOSITORY / "client/nn/linear.py"
    assert (tree / "py.typed").exists()
    backend.editor_tree(tmp_path / "tree")  # again, over what is there
    assert (tree / "nn" / "__init__.pyi").read_text() == stubs.stub("gt.nn")


def test_everything_can_be_imported_without_the_libraries_of_front_ends() -> None:
    """`from gt import *` takes `gt.jax` and `gt.torch` only where JAX and PyTorch are installed."""
    program = (
        "import sys, importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name in ('jax', 'torch') else found(name, *rest)\n"
        "from gt import *\n"
        "print('gt.jax' in sys.modules, 'gt.torch' in sys.modules)"
    )
    assert run(program) == "False False\n"


def test_front_end_that_cannot_be_loaded_is_an_attribute_that_is_missing(tmp_path: Path) -> None:
    """Compilers look through all modules by `hasattr`: that of a PyTorch too old for GT compiled nothing once GT was imported."""
    (tmp_path / "torch.py").write_text('__version__ = "2.11.0"\n')
    program = """
import gt
assert not hasattr(gt, "torch")
try:
    gt.torch.step
except AttributeError as error:
    assert "no attribute 'torch' here" in str(error) and isinstance(error.__cause__, ImportError), error
from gt import *
try:
    import gt.torch
except ImportError as error:
    print("refused")
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
