"""The example of custom ops, built and installed as a package, and computed with on real services of two workers.

It builds a distribution and starts several services, so `make ops-test` runs it and `make test` does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from custom_ops import EXAMPLE
from daemons import Machine

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif("GT_OPS_TEST" not in os.environ, reason="it builds and installs a package: make ops-test"),
]

TRAINING = """
ops, config = gt.ops.softops, sys.argv[1]
gt.manual_seed(3)
table = {
    "none": {"sharding_config": {}},
    "data": {"sharding_config": {"net": {"strategy": "data_parallel"}}},
    "model": {"mesh": {"model": 2}, "sharding_config": {"net": {"strategy": "tensor_parallel"}}},
    "columns": {"mesh": {"model": 2}, "sharding_config": {"net": {"shard": {"axis": 1, "workers": [0, 1]}}}},
    "deterministic": {"deterministic": True, "sharding_config": {"net": {"strategy": "data_parallel"}}},
}[config]
if sys.argv[2] == "here":
    gt.connect("inproc", workers=1, config=table)
elif sys.argv[2] == "own":
    gt.init(workers=2, config=table)
else:
    gt.connect(sys.argv[2], config=table)
layer = gt.nn.Linear(6, 8, dtype=gt.float64)
weight = gt.nn.Parameter(gt.ones(8, dtype=gt.float64))
optimizer = gt.optim.Adam([*layer.parameters(), weight], lr=0.05)
x = gt.randn(10, 6, dtype=gt.float64)

def step(x, limit):
    with gt.signal.context("net"):
        h = ops.ema(ops.softclamp(layer(x), limit), decay=0.5)
        return (ops.energy(h, weight) ** 2).mean()

run = gt.compile(step) if "compiled" in sys.argv else step
for number in range(12):
    if number == 6 and "kill" in sys.argv:
        gt.synchronize()
        os.kill(daemons()[-1], signal.SIGKILL)
    loss = run(x, 1.0 + number / 10)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", repr(loss.item()))
say("weight", *map(repr, weight.tolist()))
gt.disconnect()
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as pip installs it, from a copy, without a network."""
    folder = tmp_path_factory.mktemp("custom-ops")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--no-deps",
            "--disable-pip-version-check", "--target", str(folder / "target"), str(folder / "source"),
        ],
        check=True,
    )  # fmt: skip
    return folder / "target"


@pytest.fixture
def installed(machine: Machine, target: Path) -> Machine:
    """Processes that find the package."""
    machine.environment["PYTHONPATH"] = str(target)
    return machine


def numbers(machine: Machine, *arguments: str) -> list[float]:
    """The losses of a training and its last weights."""
    program = machine.program(TRAINING, *arguments)
    assert program.wait(120) == 0, program.lines
    found = [line.split()[1:] for line in program.lines if line.startswith(("loss ", "weight "))]
    return [float(word) for words in found for word in words]


def test_a_service_of_two_workers_trains_with_ops_of_a_package(installed: Machine) -> None:
    alone = numbers(installed, "none", "here")
    assert len(alone) == 12 + 8
    address, dispatcher, workers = installed.service(2)
    for config in ("data", "model", "columns"):
        for how in ((), ("compiled",)):
            np.testing.assert_allclose(numbers(installed, config, address, *how), alone, rtol=1e-9)
    assert numbers(installed, "deterministic", address) == numbers(installed, "deterministic", "here")
    for each in (*workers, dispatcher):
        each.close()


def test_a_killed_worker_costs_a_pause_and_no_value(installed: Machine) -> None:
    assert numbers(installed, "deterministic", "own", "kill") == numbers(installed, "deterministic", "here")


LOGGED = """
gt.connect(sys.argv[1])
x = gt.ops.softops.softclamp(gt.ones(3), 2.0)
say("value", x.tolist())
gt.disconnect()
"""


def test_a_log_names_the_op_with_its_version_and_replays(installed: Machine) -> None:
    log = installed.temp / "log"
    address, dispatcher, workers = installed.service(1, "--instruction-log", str(log), "--with-data")
    program = installed.program(LOGGED, address)
    assert program.wait(60) == 0, program.lines
    for each in (*workers, dispatcher):
        each.close()
    assert any("= softops::softclamp@1 " in path.read_text() for path in installed.temp.glob("log*"))
    replay = installed.command("replay", str(log))
    assert replay.wait(60) == 0, replay.lines
    log.unlink()


REFUSED = """
gt.connect(sys.argv[1])
x = gt.ones(3)
try:
    gt.ops.softops.softclamp(x)
except gt.errors.OpUnavailable as error:
    say("refused", error)
say("else", (x + 1.0).tolist())
gt.disconnect()
"""


@pytest.mark.parametrize("lacks", ["dispatcher", "worker"])
def test_a_process_without_the_package_is_named_in_the_line_of_the_call(installed: Machine, lacks: str) -> None:
    if lacks == "dispatcher":
        installed.environment["GT_OPS"] = "0"
    options = ["--address", "tcp://127.0.0.1:*", "--workers", "1", "--log-level", "info"]
    dispatcher = installed.start("a dispatcher", [sys.executable, "-P", "-m", "gt.dispatcher", *options])
    address = dispatcher.expect("listening at").split()[-1]
    installed.environment["GT_OPS"] = "0" if lacks == "worker" else "1"
    worker = installed.worker(address)
    worker.expect(" on cpu")
    installed.environment["GT_OPS"] = "1"
    program = installed.program(REFUSED, address)
    assert program.wait(60) == 0, program.lines
    (said,) = [line for line in program.lines if line.startswith("refused ")]
    who = "the dispatcher" if lacks == "dispatcher" else "worker 0 (cpu on "
    assert f"softops::softclamp (version 1): {who}" in said
    assert "install gt-softops 1.0.0 in its environment" in said
    assert "else [2.0, 2.0, 2.0]" in program.lines
    for each in (worker, dispatcher):
        each.close()


def test_the_command_checks_the_installed_package_and_one_that_is_wrong(installed: Machine, target: Path) -> None:
    listed = installed.command("conformance", "--list")
    assert listed.wait(60) == 0
    assert listed.lines == ["softops  gt-softops 1.0.0  ema, energy, softclamp"]
    checked = installed.command("conformance", "softops")
    assert checked.wait(120) == 0, checked.lines
    assert sum(line.endswith("ok") for line in checked.lines) == 3, checked.lines
    wrong = installed.temp / "wrong"
    shutil.copytree(target, wrong)
    source = wrong / "softops" / "ops.py"
    source.write_text(source.read_text().replace('reduces="sum"', 'reduces="max"'))
    installed.environment["PYTHONPATH"] = str(wrong)
    refused = installed.command("conformance", "softops")
    assert refused.wait(120) == 1, refused.lines
    text = "\n".join(refused.lines)
    assert "softops::energy@1, rows: the sharding row x cut along dimension 1" in text
    unknown = installed.command("conformance", "hardops")
    assert unknown.wait(60) == 1
    assert any("no package of ops 'hardops' is installed here" in line for line in unknown.lines)
    shutil.rmtree(wrong)
