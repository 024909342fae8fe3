"""The compiled form of the client's hot modules: when it is taken, what is said else, and that both forms do the same."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from zipfile import ZipFile

import pytest

import gt.client
from gt.native import build, finder
from gt.native.modules import FOLDERS, MANIFEST, MODULES, source

REPOSITORY = Path(__file__).parents[2]
CLIENT = REPOSITORY / "client"
LOOPS = "gt.worker.element_loops"
BOTH_FORMS = (
    "tests/client/segment",
    "tests/client/tensor/test_emission.py",
    "tests/client/compile/test_compiled_training.py",
    "tests/client/nn/test_module_hooks.py",
)
"""Tests that the form runs which the other tests do not."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of sources."""
    for module in MODULES:
        path = source(module, tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {module}\n")
    source(MODULES[0], tmp_path).with_suffix(".pxd").write_text("# declarations\n")
    return tmp_path


@pytest.fixture
def built(root: Path, tmp_path: Path) -> Path:
    """A folder of what was compiled from these sources."""
    folder = tmp_path / "built"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps(build.manifest_of(root)))
    return folder


def test_what_was_compiled_from_the_sources_is_taken(root: Path, built: Path) -> None:
    found = finder.choose([built.parent / "none", built], root, "")
    assert set(found.files) == set(MODULES)
    assert found.files[MODULES[0]] == built / f"{MODULES[0]}{EXTENSION_SUFFIXES[0]}"
    assert found.reason == f"compiled, from {built}"


@pytest.mark.parametrize("suffix", [".py", ".pxd"])
def test_what_was_compiled_from_another_source_is_left_aside(root: Path, built: Path, suffix: str) -> None:
    source(MODULES[0], root).with_suffix(suffix).write_text("# it was changed\n")
    found = finder.choose([built], root, "")
    assert (found.files, found.stale) == ({}, True)
    assert found.reason.endswith(f"another client/segment/value{suffix}")


def test_what_was_compiled_for_another_python_is_no_matter(root: Path, built: Path) -> None:
    manifest = json.loads((built / MANIFEST).read_text())
    (built / MANIFEST).write_text(json.dumps({**manifest, "suffix": ".cpython-399-x86_64-linux-gnu.so"}))
    found = finder.choose([built], root, "")
    assert (found.files, found.stale) == ({}, False)


def test_gt_native_0_leaves_it_aside(root: Path, built: Path) -> None:
    found = finder.choose([built], root, "0")
    assert (found.files, found.stale, "GT_NATIVE=0" in found.reason) == ({}, False, True)


def test_every_module_is_there_and_each_declaration_belongs_to_one() -> None:
    assert all(source(module, REPOSITORY).is_file() for module in MODULES)
    declared = {path.with_suffix(".py") for path in CLIENT.rglob("*.pxd")}
    assert declared - {source(module, REPOSITORY) for module in MODULES} == {CLIENT / "tensor" / "native_calls.py"}


def test_sources_come_with_all_declarations() -> None:
    """Else what is built from an archive of the sources is not what a checkout builds."""
    data = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folders = {f"gt.{path.parent.relative_to(REPOSITORY)}".replace("/", ".") for path in CLIENT.rglob("*.pxd")}
    assert {package for package, patterns in data.items() if "*.pxd" in patterns} == folders | {LOOPS}
    assert {*data[LOOPS]} == {f"*{path.suffix}" for path in source(f"{LOOPS}.lstm", REPOSITORY).parent.glob("*.p[xy]?")}


def test_a_wheel_with_compiled_modules_is_for_one_python_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("setuptools")
    from gt.torch_paths import build_backend

    def build_one(folder: Path) -> None:
        folder.mkdir()
        (folder / "gt.client.a.so").write_bytes(b"\x7fELF")

    monkeypatch.setattr(build_backend, "build", build_one)
    wheel = tmp_path / "gt_tensor-1-py3-none-any.whl"
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n"
    with ZipFile(wheel, "w") as file:
        file.writestr("gt-1.dist-info/WHEEL", about)
        file.writestr("gt-1.dist-info/RECORD", "gt-1.dist-info/WHEEL,sha256=x,5\ngt-1.dist-info/RECORD,,\n")
    made = build_backend.add_compiled(wheel)
    assert made.name.startswith(f"gt_tensor-1-cp{sys.version_info.major}{sys.version_info.minor}-cp")
    assert [path.name for path in tmp_path.iterdir()] == [made.name]
    with ZipFile(made) as file:
        assert file.read("gt/native/built/gt.client.a.so") == b"\x7fELF"
        version, pure, tag = file.read("gt-1.dist-info/WHEEL").decode().splitlines()
        assert (version, pure) == ("Wheel-Version: 1.0", "Root-Is-Purelib: false")
        assert made.name == f"gt_tensor-1-{tag.removeprefix('Tag: ')}.whl"
        rows = [row.partition(",")[0] for row in file.read("gt-1.dist-info/RECORD").decode().splitlines()]
        assert sorted(rows) == sorted(file.namelist())


def test_this_process_runs_one_form() -> None:
    files = finder.choice().files
    for module in MODULES:
        if module.startswith(LOOPS) and not files:  # it has no other form
            continue
        __import__(module)
        assert sys.modules[module].__file__ == str(files.get(module, source(module, REPOSITORY)))
    assert gt.client.__path__ == [str(CLIENT)]


def test_a_program_is_told_once_that_compiled_modules_are_stale(built: Path) -> None:
    manifest = json.loads((built / MANIFEST).read_text())
    program = (
        "import sys; from pathlib import Path; from gt.native import modules; modules.FOLDERS = (Path(sys.argv[1]),)\n"
        "import gt, gt.client.compile.trace; print(gt.client.segment.value.__file__)"
    )
    manifest["sources"] = {"client/segment/value.py": "0"}
    (built / MANIFEST).write_text(json.dumps(manifest))
    environment = {name: value for name, value in os.environ.items() if name != "GT_NATIVE"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(built)], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout == f"{CLIENT / 'segment' / 'value.py'}\n"
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"sources: those compiled in {built} are from another client/segment/value.py")


def test_without_a_compiler_it_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("Cython")
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    monkeypatch.setattr(build, "MODULES", ("gt.client.segment.value",))
    with pytest.raises(build.BuildError, match=f"there is no {tmp_path / 'none'} here"):
        build.build(tmp_path / "built")
    assert not (tmp_path / "built").exists()


def test_a_module_is_compiled_and_found_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of them, which takes a second or two."""
    pytest.importorskip("Cython")
    compiler = sysconfig.get_config_var("CC").split()[0]
    if subprocess.run(["sh", "-c", f"command -v {compiler}"], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no {compiler} here")
    monkeypatch.setattr(build, "MODULES", ("gt.client.segment.value",))
    folder = tmp_path / "built"
    assert build.build(folder)
    assert not build.build(folder)
    file = folder / f"gt.client.segment.value{EXTENSION_SUFFIXES[0]}"
    spec = importlib.util.spec_from_file_location("gt.client.segment.value", file)
    assert spec is not None


def test_the_compiler_sees_no_annotations_of_arguments_and_all_others() -> None:
    text = (
        "def f(µ: dict[str,\n      int] = {}, *rest: type, b: bool = True, **more: float) -> tuple[int, ...]:\n"
        "    x: list[int] = []\n    g = h  # not compiled\n"
    )
    assert build.as_compiled(text) == (
        "def f(µ           \n           = {}, *rest      , b       = True, **more       ) -> tuple[int, ...]:\n"
        "    x: list[int] = []\n\n"
    )


def test_only_what_changed_is_compiled_anew(root: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them where a declaration changed, which the others may have read."""
    compiled: list[str] = []

    def compile_one(module: str, tree: Path, out: Path) -> None:
        compiled.append(module)
        (out / f"{module}{EXTENSION_SUFFIXES[0]}").write_text("compiled")

    monkeypatch.setattr(build, "_compile", compile_one)
    for module in MODULES:
        (built / f"{module}{EXTENSION_SUFFIXES[0]}").write_text("compiled")
    assert not build.build(built, root)
    source(MODULES[3], root).write_text("# it was changed\n")
    assert build.build(built, root)
    assert compiled == [MODULES[3]]
    assert len(list(built.glob(f"*{EXTENSION_SUFFIXES[0]}"))) == len(MODULES)
    source(MODULES[0], root).with_suffix(".pxd").write_text("# it was changed\n")
    assert build.build(built, root)
    assert compiled[1:] == list(MODULES)
    manifest = json.loads((built / MANIFEST).read_text())
    (built / MANIFEST).write_text(json.dumps({**manifest, "recipe": "another"}))
    assert build.build(built, root)
    assert compiled[1:] == [*MODULES, *MODULES]


@pytest.mark.process
def test_both_forms_do_the_same() -> None:
    """The other tests run one form of the hot modules, these both."""
    compiled = finder.choose(FOLDERS, REPOSITORY, "")
    if not compiled.files:
        pytest.skip(f"no compiled modules: {compiled.reason}; make native")
    other = "0" if finder.choice().files else "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *BOTH_FORMS],
        cwd=REPOSITORY,
        env={**os.environ, "GT_NATIVE": other, "GT_EFFORT": "0.04"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
