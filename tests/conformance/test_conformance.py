"""The conformance kit: the example passes, and each thing that a package may get wrong is found, and said in words."""

import re

import numpy as np
import pytest
from custom_ops import example_ops, joined

import gt
from gt.conformance.cases import cases_of
from gt.conformance.checks import CHECKS, Subject
from gt.conformance.report import check_package, sentences, table
from gt.ops import Op, Sample
from gt.worker.base.backend import backend


@pytest.fixture(autouse=True)
def session():
    gt.connect("inproc")
    yield
    gt.disconnect()


def test_the_example_conforms():
    with joined(example_ops()) as package:
        reports = list(check_package(package, backend("cpu")))
        assert sentences(reports) == []
        lines = table(reports).splitlines()
        assert lines[0].split() == ["op", "calls", *CHECKS]
        assert [line.split()[2:] for line in lines[1:]] == [["ok"] * len(CHECKS)] * 3


def scale(xp, x):
    return x * 2


def counted():
    calls = iter(range(1000))
    return lambda xp, x: x * 2 + next(calls) * 1e-6


def changing(xp, x):
    x *= 2
    return x


BAD = {
    "shapes: changes": ({"kernel": changing}, "shapes", "its kernel changes an operand"),
    "shapes: dtype": (
        {"kernel": lambda xp, x: (x * 2).astype("float64")},
        "shapes",
        "float64 of shape .* its rules say",
    ),
    "reference": ({"reference": lambda x: x * 3}, "reference", "its kernel and its reference have values up to"),
    "no reference": ({"reference": None}, "reference", "it has no reference="),
    "gradient": ({"gradient": lambda call, grad: grad}, "gradient", "its gradient is wrong"),
    "rows: elements": (
        {"kernel": lambda xp, x: x - x.mean()},
        "rows",
        "row x cut along dimension 0 → result cut along",
    ),
    "rows: join": (
        {"letters": "bn -> b", "reduces": "max", "kernel": lambda xp, x: x.sum(1)},
        "rows",
        r"row x cut along dimension 1 → result partial \(max\) gives values",
    ),
    "rows: linear": (
        {"kernel": lambda xp, x: x * x, "linear": ("x",)},
        "rows",
        r"row x partial \(sum\) → result partial",
    ),
    "bits: again": ({"kernel": counted()}, "bits", "other bits when it is called again"),
    "bits: parts": (
        {"kernel": lambda xp, x: x * 2 + (x.size > 4) * 1e-15, "bitwise": True},
        "bits",
        "its parts have other bits",
    ),
    "empty": (
        {"letters": "bn -> b", "kernel": lambda xp, x: x.max(1), "reduces": "max"},
        "empty",
        "no elements along n give an error",
    ),
    "refusals": (
        {"letters": lambda x: "...->..." if 7 else 0, "samples": lambda rng: iter(())},
        "shapes",
        "yields nothing",
    ),
    "samples": ({"samples": lambda rng: [Sample({"y": np.ones(3)})]}, "shapes", "samples are gt.ops.Sample with"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_package_gets_wrong_is_found_and_said(name):
    given, check, said = BAD[name]
    own = f"f{list(BAD).index(name)}"
    title = f"bad::{own}@1"
    op = Op(**{
        "name": own, "version": 1, "operands": ("x",), "letters": "... -> ...", "kernel": scale,
        "reference": lambda x: given.get("kernel", scale)(np, x.copy()), "gradient": lambda call, grad: grad * 2.0, **given,
    })  # fmt: skip
    with joined([op], "bad") as package:
        if name in ("shapes: changes", "bits: again", "no reference"):  # other checks would find them first, or end
            subject = Subject(title, op, backend("cpu"), cases_of(title, op))
            found = [f"{title}, {check}: {each}" for each in CHECKS[check](subject)]
        else:
            found = sentences(list(check_package(package, backend("cpu"))))
        mine = [each for each in found if each.startswith(f"{title}, {check}: ")]
        assert any(re.search(said, each) for each in mine), found


def test_calls_made_from_letters_are_uneven_stretched_and_of_one():
    op = Op(name="f", version=1, operands=("x", "y"), letters="...n, ...n -> ...", reduces="sum", kernel=scale)
    with joined([op], "made"):
        shapes = [tuple(x.shape for x in case.arrays) for case in cases_of("made::f@1", op)]
    assert ((5,), (5,)) in shapes
    assert ((2, 3, 5), (2, 3, 5)) in shapes
    assert ((2, 3, 5), (1, 5)) in shapes
    assert ((2, 3, 1), (2, 3, 1)) in shapes
