"""The doctor's advice on real programs: each has one mistake, and the report names it, with the line where it is."""

from __future__ import annotations

import sys
import textwrap

import pytest
from daemons import Machine

pytestmark = pytest.mark.process

HEAD = """\
import sys
import gt

gt.init(workers=2, config={"sharding_config": {"w": {"strategy": "fully_sharded"}}})
x = gt.ones(256, 256)
with gt.signal.context("w"):
    p = gt.nn.Parameter(gt.ones(1024, 1024))
v = gt.ones(64, 1024)
"""
MISTAKES = {
    "fetch in a loop": """
        for turn in range(60):
            y = (x @ x).sum() + turn  # here
            y.item()
        """,
    "a segment that never repeats": """
        for turn in range(40):
            z = gt.ones(turn + 5, 64)  # here
            (z * 2).sum().item()
        """,
    "tiny ops": """
        s = gt.zeros(3)
        for turn in range(3000):
            s = s * 0.5 + 1.0  # here
        s.numpy()
        """,
    "a plan that gathers": """
        for turn in range(40):
            with gt.signal.context("w"):
                q = gt.nn.functional.linear(v, p)  # here
            gt.flush()
        q.sum().item()
        """,
}


def test_mistakes_are_named_with_their_lines(machine: Machine) -> None:
    """Each in a profile of its own, of one program."""
    code = HEAD
    for number, mistake in enumerate(MISTAKES.values(), 1):
        code += f"with gt.profile(sys.argv[{number}]):\n" + textwrap.indent(textwrap.dedent(mistake), "    ")
    lines = [number for number, text in enumerate(code.splitlines(), 1) if text.endswith("# here")]
    program, traces = machine.temp / "program.py", [machine.temp / f"run{number}.json" for number in range(len(lines))]
    program.write_text(code)
    ran = machine.start("the program", [sys.executable, str(program), *map(str, traces)])
    assert ran.wait() == 0, ran.lines
    for mistake, line, trace in zip(MISTAKES, lines, traces, strict=True):
        report = machine.command("report", str(trace))
        assert report.wait() == 0, report.lines
        assert f"{program}:{line}: {mistake}" in report.lines
        for path in (trace, trace.with_suffix(".html")):
            path.unlink()
    program.unlink()
