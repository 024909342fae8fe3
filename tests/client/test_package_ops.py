"""Ops of packages in programs: values, gradients and plans on any mesh, what compiled functions make of them, and refusals."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from custom_ops import WEIGHT, X, example_ops, joined

import gt
from gt.client import package_ops
from gt.client.session import sessions
from gt.ops import NO_GRADIENT, Op
from gt.service import in_process

BATCH = {"sharding_config": {"b": {"strategy": "data_parallel"}}}
COLUMNS = {"mesh": {"model": 2}, "sharding_config": {"b": {"shard": {"axis": 1, "workers": [0, 1]}}}}
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def package() -> Iterator[None]:
    with joined(example_ops()):
        yield
        gt.disconnect()


def computed(workers: int, config: Any) -> list[Array]:
    """Results and gradients of all three ops."""
    gt.connect("inproc", workers=workers, config=config)
    with gt.signal.context("b"):
        x = gt.tensor(X, dtype=gt.float64, requires_grad=True)
        weight = gt.tensor(WEIGHT, dtype=gt.float64, requires_grad=True)
        y = gt.ops.softops.softclamp(x, 2.0)
        e = gt.ops.softops.energy(y, weight)
        s = gt.ops.softops.ema(y, decay=0.3)
        (e.sum() + s.sum()).backward()
    return [t.numpy() for t in (y, e, s, x.grad, weight.grad)]


def test_ops_of_packages_have_the_same_values_and_gradients_on_any_mesh() -> None:
    alone = computed(1, None)
    x, weight = np.array(X), np.array(WEIGHT)
    y = 2 * np.tanh(x / 2)
    np.testing.assert_allclose(alone[0], y)
    np.testing.assert_allclose(alone[1], (y * y * weight).sum(1))
    for workers, config in ((3, BATCH), (2, COLUMNS), (3, {"deterministic": True, **BATCH})):
        for one, other in zip(alone, computed(workers, config), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_a_deterministic_session_gives_the_same_bits_on_any_mesh() -> None:
    found = [computed(workers, {"deterministic": True, **BATCH}) for workers in (1, 3)]
    assert [a.tobytes() for a in found[0]] == [b.tobytes() for b in found[1]]


def plans_of(config: Any) -> str:
    """What `gt.explain` says of a step with these ops on two workers."""

    def program() -> None:
        with gt.signal.context("b"):
            x = gt.randn(64, 64)
            gt.ops.softops.energy(gt.ops.softops.softclamp(x), gt.ones(64)).sum().item()

    return str(gt.explain(program, workers=2, config=config))


def test_rows_are_cut_by_the_letters_and_explained() -> None:
    text = plans_of(COLUMNS)
    assert "b" in text, text
    gt.connect("inproc", workers=2, config=COLUMNS)
    with gt.signal.context("b"):
        x = gt.randn(4, 6)
        e = gt.ops.softops.energy(x, gt.ones(6))
    np.testing.assert_allclose(e.numpy(), (x.numpy() ** 2).sum(1), rtol=1e-5)
    assert "softops::energy@1" in str(gt.why(e))


def test_a_compiled_function_holds_them_and_new_numbers_need_no_new_plan() -> None:
    gt.connect("inproc")
    x = gt.tensor(X)

    @gt.compile
    def f(x: Any, limit: float) -> Any:
        return gt.ops.softops.ema(gt.ops.softops.softclamp(x, limit)).sum()

    for limit in (1.0, 2.0, 3.0, 4.0):
        expected = gt.ops.softops.ema(gt.ops.softops.softclamp(x, limit)).sum().item()
        assert f(x, limit).item() == expected


def test_second_derivatives_and_broken_gradients() -> None:
    gt.connect("inproc")
    x = gt.tensor(X, dtype=gt.float64, requires_grad=True)
    assert gt.autograd.gradgradcheck(lambda x: gt.ops.softops.softclamp(x, 1.5), [x])
    ops = [
        declared("none"),
        declared("stops", gradient=NO_GRADIENT),
        declared("short", gradient=lambda call, grad: ()),
        declared("lost", gradient=lambda call, grad: (None,)),
        declared("bent", gradient=lambda call, grad: grad[0]),
        declared("greedy", gradient=lambda call, grad: call["x"], gradient_reads="nothing"),
        declared("curious", gradient=lambda call, grad: call.result),
    ]
    with joined(ops, "bad"):
        assert not gt.ops.bad.stops(x).requires_grad
        for name, said in (
            ("none", "has no gradient: .detach"),
            ("short", "returns 1 tensors"),
            ("lost", "gives none for x"),
            ("bent", r"gradient of x has shape \(5,\)"),
            ("greedy", "gradient reads x: declare"),
            ("curious", "gradient reads the result: declare"),
        ):
            with pytest.raises(gt.errors.GradientError, match=said):
                getattr(gt.ops.bad, name)(x).sum().backward()


def declared(name: str, kernel: Any = None, **given: Any) -> Op:
    return Op(
        name=name, version=1, operands=("x",), letters="... -> ...", kernel=kernel or (lambda xp, x: x + 0), **given
    )


def test_arguments_are_refused_in_the_users_line() -> None:
    gt.connect("inproc")
    x, ops = gt.tensor(X), gt.ops.softops
    for error, call, said in (
        (TypeError, lambda: ops.energy(x), r"energy\(x, weight\): missing a required argument"),
        (TypeError, lambda: ops.softclamp(x, size=1), "unexpected keyword"),
        (gt.errors.ShapeError, lambda: ops.energy(x, x), "weight has 1 dimensions"),
        (gt.errors.DTypeError, lambda: ops.softclamp(x > 0), "holds floating-point numbers"),
        (gt.errors.DTypeError, lambda: ops.softclamp(x, 1j), "a number of type float"),
        (gt.errors.DTypeError, lambda: ops.softclamp(x, x), "pass x.item"),
        (gt.errors.DTypeError, lambda: ops.ema(x, reverse=1), "True or False"),
        (AttributeError, lambda: ops.clamp, "gt-softops 1.0.0 brings ema, energy, softclamp"),
        (AttributeError, lambda: gt.ops.hardops, "gt.ops has no package 'hardops': install"),
    ):
        with pytest.raises(error, match=said):
            call()
    assert dir(gt.ops) == ["NO_GRADIENT", "Op", "Sample", "softops"]


def test_a_kernel_that_breaks_its_word_costs_its_own_value() -> None:
    gt.connect("inproc")
    ops = [
        declared("narrow", lambda xp, x: x.astype("float32")),
        declared("long", lambda xp, x: [1, 2]),
        declared("same", lambda xp, x: x),
        declared("fails", lambda xp, x: 1 / 0),
    ]
    x = gt.tensor(X, dtype=gt.float64)
    with joined(ops, "bad"):
        good = gt.ops.bad.same(x)
        for name, said in (
            ("narrow", "returned float32 of shape"),
            ("long", "returned list in place of float64"),
            ("fails", "ZeroDivisionError"),
        ):
            bad = getattr(gt.ops.bad, name)(x)
            with pytest.raises(gt.errors.WorkerError, match=said):
                bad.numpy()
        x += 1.0  # the kernel gave its operand back, which is written over here
        assert good.tolist() == X


OLDER = {"softops": ["gt-softops", "0.9", {"energy": 1, "ema": 1}]}


def connected(monkeypatch: pytest.MonkeyPatch, **worker: Any) -> None:
    """A service of two workers, of which the last is like this."""
    made = in_process.Fabric.__init__

    def unlike(self: Any, workers: int, config: Any, **options: Any) -> None:
        made(self, workers, config, **{**options, "facts": [{}, worker]})

    monkeypatch.setattr(in_process.Fabric, "__init__", unlike)
    gt.connect("inproc", workers=2, config=BATCH)


def test_an_op_that_a_worker_lacks_is_refused_in_the_line_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, ops=OLDER)
    x = gt.tensor(X)
    with pytest.raises(
        gt.errors.OpUnavailable, match=r"worker 1 \(cpu\) has gt-softops 0\.9, which lacks it"
    ) as caught:
        gt.ops.softops.softclamp(x)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[0].line == "gt.ops.softops.softclamp(x)"
    assert gt.ops.softops.energy(x, gt.tensor(WEIGHT)).shape == (3,)


def test_a_worker_that_came_later_costs_what_depends_on_the_op_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has asked before the worker was there."""
    connected(monkeypatch, ops=OLDER)
    package_ops._found[sessions.current()] = {"softops::softclamp@1"}
    x = gt.tensor(X, dtype=gt.float64)
    for _ in range(3):
        with gt.signal.context("b"):
            y, twice = gt.ops.softops.softclamp(x), x * 2.0
            after = y + 1.0
        assert twice.tolist() == (np.array(X) * 2).tolist()
        for lost in (y, after):
            with pytest.raises(
                gt.errors.OpUnavailable, match=r"install gt-softops 1\.0\.0 .* at .*test_package_ops\.py:\d+"
            ):
                lost.numpy()


def test_a_dispatcher_without_the_package_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gt.connect("inproc")
    monkeypatch.setattr("gt.dispatcher.telemetry.worker_ops.own_offer", dict)
    with pytest.raises(gt.errors.OpUnavailable, match="the dispatcher has no package of ops 'softops'"):
        gt.ops.softops.softclamp(gt.tensor(X))
