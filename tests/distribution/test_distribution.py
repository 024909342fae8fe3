"""Wheel and source distribution: what is in them, and that each runs from nothing but itself, outside the tree.

make dist-test builds both and runs this; elsewhere it is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
DIST = REPOSITORY / "dist"
ROOMS = ("client", "dispatcher", "monitor", "worker")
TIMEOUT = 300

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        "GT_DIST_TEST" not in os.environ, reason="make dist-test builds the distributions and runs this"
    ),
]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return found


def built(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


def tracked(*folders: str) -> set[str]:
    """What git keeps in these folders."""
    command = ["git", "ls-files", *folders]
    return set(subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines())


class Installed:
    """A bare environment into which one distribution was installed, and a folder outside the tree to run it in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GT_", "PYTHON", "XDG_"))}
        self.environment = kept | {
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder),
            "PATH": f"{self.bin}:/usr/bin:/bin",
        }

    def install(self, *what: str) -> None:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--python", str(self.bin / "python"), "install", "--no-compile", *what],
            check=True,
            timeout=2 * TIMEOUT,
        )

    def run(self, *command: str, **variables: str) -> str:
        """What a command in the environment prints; it must succeed."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.work, env=self.environment | variables, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Python, GT's wheel and what that depends on; not even pip."""
    made = Installed(tmp_path_factory.mktemp("bare"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made.folder / "venv")], check=True)
    made.install(str(built("*.whl")))
    return made


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def installed(environment: Installed, request: pytest.FixtureRequest) -> Installed:
    environment.install("--force-reinstall", "--no-deps", str(built(request.param)))
    return environment


@pytest.fixture(scope="module")
def wheel_names() -> set[str]:
    with zipfile.ZipFile(built("*.whl")) as wheel:
        assert wheel.testzip() is None
        return set(wheel.namelist())


def test_the_wheel_has_every_module_with_its_data_and_nothing_else(wheel_names: set[str]) -> None:
    sources = {path if path.startswith("gt/") else f"gt/{path}" for path in tracked("gt", *ROOMS)}
    information = f"gt_tensor-{project()['version']}.dist-info"
    found = {name for name in wheel_names if not name.startswith(f"{information}/")}
    assert sources - found == set()
    made = found - sources
    assert {Path(name).suffix for name in made} == {".pyi"}, "besides sources there are stubs only"
    assert {"gt/py.typed", "gt/nn/modules/linear/__init__.pyi", "gt/deploy/templates/kubernetes/workers.yaml"} <= found
    assert f"{information}/licenses/LICENSE" in wheel_names


def test_the_sdist_has_what_its_documents_speak_of_and_no_tests_or_build_products() -> None:
    with tarfile.open(built("*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()} - {""}
    assert tracked("gt", *ROOMS, "configs", "docs", "examples") <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "pyproject.toml"} <= names
    assert not [name for name in names if re.match(r"(tests|benchmarks|build|dist|\.)", name)]
    assert not [name for name in names if name.endswith((".pyc", ".so", ".o"))]


def test_checksums_and_the_list_of_components_are_those_of_what_was_built() -> None:
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    said = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(said) == {path.name for path in DIST.iterdir()} - {"SHA256SUMS"}
    for name, digest in said.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest
    components = json.loads(built("*.cdx.json").read_text())
    assert components["bomFormat"] == "CycloneDX"
    about = components["metadata"]["component"]
    assert (about["name"], about["version"]) == ("gt-tensor", project()["version"])
    listed = {_canonical(each["name"]): each for each in components["components"]}
    needed = {_canonical(re.split(r"[^\w.-]", each)[0]) for each in project()["dependencies"]}
    assert needed <= set(listed)
    assert all(each["version"] and each["purl"] for name, each in listed.items() if name in needed)
    assert not {"pip", "setuptools", "pytest"} & set(listed)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_example_in_the_readme_computes_the_same_on_one_worker_and_on_four(installed: Installed) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    for name, notation in (("train.py", "python"), ("train.yaml", "yaml")):
        block = re.search(rf"```{notation}\n(.*?)```", readme, flags=re.DOTALL)
        assert block is not None
        (installed.work / name).write_text(block[1])
    alone = float(installed.run("python", "train.py"))
    assert 0 < alone < 1
    assert float(installed.run("python", "train.py", GT_CONFIG="train.yaml")) == pytest.approx(alone, rel=1e-3)


def test_it_is_imported_from_where_it_was_installed_with_its_version(installed: Installed) -> None:
    where = installed.run("python", "-c", "import gt.worker; print(gt.worker.__file__)").strip()
    assert Path(where).is_relative_to(installed.folder / "venv")
    assert installed.run("gt", "--version").strip() == f"gt {project()['version']}"


def test_the_doctor_finds_all_packages_and_its_own_test_passes(installed: Installed) -> None:
    found = json.loads(installed.run("gt", "doctor", "--json"))
    assert [each for each in found if each["status"] == "problem"] == []
    assert {"python", "packages", "self-test"} <= {each["check"] for each in found}


def test_editors_get_types_and_a_schema_of_the_config(installed: Installed) -> None:
    program = "import json; from gt.sharding.config import Config; print(json.dumps(Config.json_schema()))"
    schema = json.loads(installed.run("python", "-c", program))
    assert {"mesh", "sharding_config"} <= set(schema["properties"])
    folder = Path(installed.run("python", "-c", "import gt; print(gt.__file__)").strip()).parent
    assert (folder / "py.typed").is_file()
    assert (folder / "nn/modules/linear/__init__.pyi").is_file()


def test_deployments_are_written(installed: Installed, tmp_path: Path) -> None:
    for kind, file in (("systemd", "gt.target"), ("slurm", "gt-service.sh"), ("k8s", "workers.yaml")):
        installed.run("gt", "deploy", kind, "--out", str(tmp_path / kind))
        assert list((tmp_path / kind).rglob(file)), kind
    installed.run("gt", "deploy", "compose", "--source", str(REPOSITORY), "--out", str(tmp_path / "compose"))
    assert (tmp_path / "compose/compose.yaml").is_file()


@pytest.fixture
def service(installed: Installed) -> Iterator[tuple[Installed, str]]:
    """A service of two workers by `gt up`, and its address."""
    address = f"ipc://{installed.folder}/service"
    command = [str(installed.bin / "gt"), "up", "--workers", "2", "--address", address]
    process = subprocess.Popen(
        command, cwd=installed.work, env=installed.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"2 workers at {address}")
        yield installed, address
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT)


def test_a_service_is_well_shown_and_used(service: tuple[Installed, str]) -> None:
    installed, address = service
    installed.run("gt", "health", address, "--workers", "2")
    assert "No client is connected." in installed.run("gt", "top", address, "--once")
    shown = json.loads(installed.run("gt", "top", address, "--once", "--json"))
    assert len(shown["workers"]) == 2
    program = f"import gt; gt.connect({address!r}); print(gt.ones(3, 4).sum().item())"
    assert float(installed.run("python", "-c", program)) == 12
