"""`gt tune` as a whole: it explains a program, measures it on real workers, and writes a config that the program runs with.

It starts a service for each run, one after the other, so `make tune-test` runs it and `make test` does not.
"""

from __future__ import annotations

import os

import pytest
from daemons import Machine

from gt.sharding import config

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif("GT_TUNE_TEST" not in os.environ, reason="it takes a while: make tune-test"),
]

PROGRAM = """
import os, sys
import gt
batch = int(os.environ["GT_BATCH_SIZE"])
assert sys.argv[1:] == ["--batch", str(batch)]
gt.manual_seed(0)
up, down = gt.nn.Linear(64, 256), gt.nn.Linear(256, 64)
optimizer = gt.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1)
x = gt.randn(batch, 64)
for _ in range(30):
    with gt.signal.context("batch"):
        with gt.signal.context("up"):
            h = up(x).relu()
        with gt.signal.context("down"):
            loss = (down(h) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_program_is_tuned_for_two_workers(machine: Machine) -> None:
    path, out = machine.temp / "train.py", machine.temp / "best.yaml"
    path.write_text(PROGRAM)
    process = machine.command(
        "tune", str(path), "--workers", "2", "--batch-sizes", "16,64", "--tries", "2", "--steps", "5", "--warmup", "3",
        "--search", "--out", str(out), "--", "--batch", "{batch_size}",
    )  # fmt: skip
    assert process.wait(300) == 0, process.lines
    text = "\n".join(process.lines)
    assert "best: batch size" in text, text
    assert "other values" not in text, text
    assert text.count("measuring") == 4, text
    config.load(out).mesh_for(2)
    path.unlink()
    out.unlink()


def test_a_program_is_measured_on_a_service_that_runs(machine: Machine) -> None:
    path = machine.temp / "train.py"
    path.write_text(PROGRAM)
    address, _, _ = machine.service(2)
    process = machine.command(
        "tune", str(path), "--address", address, "--batch-sizes", "16", "--tries", "1", "--steps", "5", "--warmup", "3",
        "--", "--batch", "{batch_size}",
    )  # fmt: skip
    assert process.wait(300) == 0, process.lines
    text = "\n".join(process.lines)
    assert text.count("measuring") == 2, text
    assert "other values" not in text, text
    assert "best: batch size 16" in text, text
    path.unlink()
