"""Packages of ops: what may join the op table, what installed packages are found, and what other processes are told."""

import sys

import pytest
from custom_ops import example_ops, joined

from gt.errors import DTypeError, GTError, ProtocolError, ShapeError
from gt.ir.dtypes import float32, float64, int64
from gt.ir.infer import derive
from gt.ir.ops import OPS
from gt.ir.spec import spec
from gt.op_packages import loading, offers, registry
from gt.ops import Op


def op(**given):
    return Op(**{"name": "f", "version": 1, "operands": ("x",), "letters": "... -> ...", "kernel": abs, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "F"}, "a name is small letters"),
        ({"version": 0}, "a version is an integer from 1"),
        ({"operands": ()}, "at least one"),
        ({"operands": "x"}, "at least one"),
        ({"numbers": {"x": 1.0}}, "different names"),
        ({"numbers": {"n": "1"}}, "the default of n"),
        ({"attributes": {"axis": 1}}, "a kind of"),
        ({"reduces": "mean"}, "reduces is one of sum"),
        ({"linear": ("y",)}, "linear names operands"),
        ({"dtypes": "floats"}, "dtypes are"),
        ({"result_dtype": "half"}, "result_dtype is one of"),
        ({"gradient_reads": "all"}, "gradient_reads is one of"),
        ({"letters": "b, b -> b"}, "a term for each of 1"),
        ({"letters": "b_ -> b_"}, "do not say the result's shape"),
    ],
)
def test_a_declaration_that_is_wrong_says_why(given, said):
    with pytest.raises(ValueError, match=f"op .*{said}"):
        op(**given)


def test_a_package_joins_beside_the_core_and_takes_nothing_of_it():
    before = dict(OPS)
    with joined([op(name="matmul")]) as package:
        assert set(OPS) - set(before) == {"softops::matmul@1"}
        assert OPS["matmul"] is before["matmul"]
        assert package.said == "gt-softops 1.0.0"
        with pytest.raises(GTError, match=r"two distributions bring .* gt-softops 1\.0\.0 and other 2"):
            registry.join("softops", "other", "2", [op()])
    assert before == OPS
    for name, ops, said in (
        ("gt", [op()], "reserved"),
        ("Soft", [op()], "small letters"),
        ("soft", [op(), op(version=2)], "different names"),
        ("soft", [abs], "no list of gt.ops.Op"),
        ("soft", abs, "no list of gt.ops.Op"),
        ("soft", [], "different names"),
    ):
        with pytest.raises(GTError, match=said):
            registry.join(name, "gt-soft", "1", ops)
    assert before == OPS


def test_shapes_and_dtypes_are_those_of_letters_and_rules():
    ops = [
        op(name="double", letters="b_ -> b_", shape=lambda x: (x[0], 2 * x[1])),
        op(name="wrong", letters="b_ -> b_", shape=lambda x: (x[0] + 0.5, 1)),
        op(name="fails", letters="b_ -> b_", shape=lambda x: x[7]),
        op(name="refuses", letters=lambda x, axis: refuse(), attributes={"axis": ("axis", 0)}),
        op(name="count", dtypes={"x": "integer"}, result_dtype="float32"),
        op(name="only", dtypes="float32"),
    ]

    def refuse():
        raise ValueError("sizes are even")

    def result(name, *operands, **attributes):
        return derive(f"p::{name}@1", operands, attributes)[1]

    x = spec(float64, (3, 4))
    with joined(ops, "p"):
        assert result("double", x) == (spec(float64, (3, 8)),)
        assert result("count", spec(int64, (2,))) == (spec(float32, (2,)),)
        assert result("only", spec(float32, (2,))) == (spec(float32, (2,)),)
        for error, name, operands, said in (
            (GTError, "wrong", (x,), "no list of sizes"),
            (GTError, "fails", (x,), "rule of shape fails for shapes .*IndexError"),
            (DTypeError, "count", (x,), "x holds integers"),
            (DTypeError, "only", (x,), "x holds float32, not"),
            (DTypeError, "double", ("f",), "takes 1 tensors"),
            (ShapeError, "double", (x, x), "takes 1 operands"),
        ):
            with pytest.raises(error, match=said):
                result(name, *operands)
        with pytest.raises(ShapeError, match="sizes are even"):
            result("refuses", x, axis=0)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A place for distributions, where this process looks for packages of ops as if it had not yet."""
    monkeypatch.setattr(loading, "_loaded", [])
    monkeypatch.setattr(loading, "PROBLEMS", {})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in set(registry.PACKAGES) & {"first", "broken", "twice"}:
        registry.leave(name)


def install(folder, distribution, points, code=""):
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text(
        "[gt.ops]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    )


CODE = "from gt.ops import Op\nOPS = [Op(name='f', version=1, operands=('x',), letters='... -> ...', kernel=abs)]\n"


def test_installed_packages_are_found_once_and_bad_ones_cost_only_themselves(elsewhere):
    install(elsewhere, "gt-first", {"first": "gt_first:OPS"}, CODE)
    install(elsewhere, "gt-broken", {"broken": "gt_broken:OPS"}, "import no_such_module")
    install(elsewhere, "gt-a", {"twice": "gt_a:OPS"}, CODE)
    install(elsewhere, "gt-b", {"twice": "gt_b:OPS"}, CODE)
    problems = loading.load_packages()
    assert registry.PACKAGES["first"].said == "gt-first 3.1"
    assert set(problems) == {"broken", "twice"}
    assert "gt-broken 3.1 cannot be loaded: ModuleNotFoundError" in problems["broken"]
    assert problems["twice"].startswith("several distributions bring a package of ops 'twice': gt-a 3.1, gt-b 3.1")
    assert loading.load_packages() == problems


def test_nothing_is_loaded_when_it_is_switched_off_or_nobody_has_any(elsewhere, monkeypatch):
    monkeypatch.setattr(loading, "_load", lambda: pytest.fail("nothing has an entry point"))
    assert loading.load_packages() == {}
    loading._loaded.clear()
    install(elsewhere, "gt-first", {"first": "gt_first:OPS"}, CODE)
    monkeypatch.setenv("GT_OPS", "0")
    assert loading.load_packages() == {}
    loading._loaded.clear()
    monkeypatch.setenv("GT_OPS", "1")
    with pytest.raises(pytest.fail.Exception, match="nothing has an entry point"):
        loading.load_packages()


def test_what_lacks_an_op_is_told_what_to_install_and_where():
    with joined(example_ops()):
        own = offers.own_offer()
        assert own == {"softops": ["gt-softops", "1.0.0", {"softclamp": 1, "energy": 1, "ema": 1}]}
        assert offers.read_offer(own) == offers.read_offer(True)
        older = offers.read_offer({"softops": ["gt-softops", "0.9", {"softclamp": 2}]})

        def said(title, offer):
            return offers.what_lacks(title, "worker 1 (cpu)", offer)

        assert said("softops::ema@1", offers.read_offer(own)) is None
        assert said("softops::ema@1", {}) == (
            "softops::ema (version 1): worker 1 (cpu) has no package of ops 'softops': install gt-softops 1.0.0 in its "
            "environment and start it anew, without GT_OPS=0"
        )
        assert "has version 2 of it (gt-softops 0.9): install gt-softops 1.0.0" in said("softops::softclamp@1", older)
        assert "has gt-softops 0.9, which lacks it" in said("softops::ema@1", older)
        assert "install what brings version 7" in said("softops::softclamp@7", older)


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {"p": 1},
        {"p": ["a", "1", {"f": "1"}]},
        {"p": ["a" * 201, "1", {}]},
        {"p": ["a", 1, {}]},
        {1: ["a", "1", {}]},
    ],
)
def test_an_offer_that_is_none_is_refused(raw):
    with pytest.raises(ProtocolError):
        offers.read_offer(raw)


@pytest.mark.parametrize("title", ["softops", "softops::f", "::f@1", "softops::@1", "softops::f@x"])
def test_a_title_that_is_none_is_refused(title):
    with pytest.raises(ProtocolError, match="package::op@version"):
        offers.split_title(title)
