"""Programs written for PyTorch, each in GT and in PyTorch: containers, masks, numbers, constructors, files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from beside_torch import in_both, leaf
from hypothesis import given
from hypothesis import strategies as st

import gt
from gt.torch_paths.instead import INSTEAD
from gt.wire.shared_memory import memfd

pytestmark = pytest.mark.usefixtures("session")
both, test_a_program_gives_what_it_gives_in_pytorch = in_both()


@both
def containers_keep_empty_places(lib: Any) -> Any:
    layer = lib.nn.Linear(2, 2)
    listed, named = lib.nn.ModuleList([layer, None, None]), lib.nn.ModuleDict({"a": layer, "b": None})
    chain = lib.nn.Sequential(layer, None)
    seen = [[module is layer for module in each] for each in (listed, named.values(), chain)]
    listed.insert(1, None)
    del listed[0]
    names = [sorted(each.state_dict()) for each in (listed, named, chain)]
    return [seen, len(listed), list(listed) == [None] * 3, names, named["b"] is None, list(lib.nn.ModuleList())]


@both
def places_that_are_not_selected_keep_gradients(lib: Any) -> Any:
    found = []
    for places in (lib.zeros(3) > 1, lib.tensor([], dtype=lib.int64), []):
        x, rows, weight = lib.zeros(3), lib.zeros(3, 2), leaf(lib, 1.0, 2.0)
        x[places] += weight.sum().float()
        rows[places] += weight.float()
        found.append([x.requires_grad, rows.requires_grad])
        (x.sum() + rows.sum()).backward()
        found.append(weight.grad)
    weight = lib.ones(0, requires_grad=True)
    kept = lib.tensor([-0.0, float("inf")])
    kept[kept == 1] += weight
    kept.sum().backward()
    return [*found, 1 / kept.detach(), weight.grad]


@both
def numbers_are_formatted_as_pythons(lib: Any) -> Any:
    numbers = [lib.tensor(1.5), lib.tensor(3), lib.tensor(True), lib.tensor(0.25, requires_grad=True)]
    with pytest.raises(TypeError, match="unsupported format string"):
        format(lib.ones(1), ".2f")
    return [[f"{x}" for x in numbers], [f"{x:>10}" for x in numbers], f"{numbers[0]:.3f}", f"{lib.ones(2)}"]


@both
def tensors_are_constructed(lib: Any) -> Any:
    made = [lib.Tensor([1.0, 2.0]), lib.Tensor([[1, 2]]), lib.Tensor(lib.ones(2)), lib.Tensor(), lib.LongTensor([3])]
    return [*made, list(lib.Tensor(2, 3).shape), list(lib.Tensor(0).shape), lib.Tensor([1]).requires_grad]


@both
def typed_tensors_are_classes(lib: Any) -> Any:
    def chosen(x: lib.LongTensor | None, y: lib.FloatTensor | lib.BoolTensor) -> Any:
        return [isinstance(each, kind) for each in (x, y) for kind in (lib.LongTensor, lib.FloatTensor, lib.BoolTensor)]

    weight = lib.nn.Parameter(lib.ones(1))
    return [chosen(None, lib.ones(1)), chosen(lib.arange(2), lib.ones(1) > 0), isinstance(weight, lib.FloatTensor)]


@both
def bytes_are_seen_as_other_numbers(lib: Any) -> Any:
    x = lib.tensor([[1.0, -2.0], [0.5, 3.0]])
    seen = [x.view(lib.int32), x.view(lib.uint8), x.view(lib.float64), x.view(lib.int32).view(lib.float32)]
    for wrong in (lambda: lib.ones(3).view(lib.float64), lambda: lib.tensor(1.0).view(lib.int16)):
        with pytest.raises((RuntimeError, gt.ShapeError)):
            wrong()
    return [*seen, lib.tensor(1.0).view(lib.int32)]


@both
def tensors_are_saved_to_what_is_open(lib: Any) -> Any:
    buffer = io.BytesIO()
    lib.save({"weight": lib.ones(2), "epochs": [1, {"loss": lib.tensor(0.5)}]}, buffer)
    buffer.seek(0)
    found = lib.load(buffer)
    return [found["weight"], found["epochs"][0], found["epochs"][1]["loss"]]


@both
def numbers_meet_as_tensors(lib: Any) -> Any:
    pairs = [(7, 2), (-7, 2), (7.5, 2), (True, 2.5)]
    found = [[lib.div(a, b), lib.true_divide(a, b), lib.mul(a, b), lib.add(a, b)] for a, b in pairs]
    rounded = [lib.div(a, b, rounding_mode=mode) for a, b in pairs[:3] for mode in ("trunc", "floor")]
    with pytest.raises((TypeError, gt.DTypeError)):
        lib.maximum(1, 2)
    return [*found, *rounded, lib.sub(2.5, 7), lib.floor_divide(-7, 2), lib.add(1, 2, alpha=3), lib.multiply(3, 2j)]


@given(
    st.floats(-3, 6), st.floats(-3, 6), st.integers(0, 9), st.sampled_from([2.0, 3.0, 1.5, 10.0]),
    st.sampled_from(["int16", "int32", "int64"]),
)  # fmt: skip
def test_whole_powers_are_those_of_pytorch(start: float, end: float, steps: int, base: float, dtype: str) -> None:
    """Integers from one end to another: the ends are truncated, and so are the powers."""
    torch = pytest.importorskip("torch")
    if dtype == "int16" and base ** max(start, end) > 30_000:
        return  # beyond what it holds
    theirs = torch.logspace(start, end, steps, base, dtype=getattr(torch, dtype))
    assert gt.logspace(start, end, steps, base, dtype=getattr(gt, dtype)).tolist() == theirs.tolist()


def test_a_file_of_pytorch_is_read_from_what_is_open() -> None:
    torch = pytest.importorskip("torch")
    for zipped in (True, False):
        buffer = io.BytesIO()
        torch.save({"weight": torch.ones(2)}, buffer, _use_new_zipfile_serialization=zipped)
        buffer.seek(0)
        assert gt.load(buffer)["weight"].tolist() == [1, 1]
    with pytest.raises(gt.GTError, match="neither a safetensors file"):
        gt.load(io.BytesIO(b"nothing of the kind"))


def test_shared_memory_ends_after_the_modules_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a program Python empties modules before the last objects go."""
    memory = memfd.SharedMemory(1 << 12)
    descriptor = memory.descriptor
    monkeypatch.setattr(memfd, "os", None)
    del memory  # an exception there would be reported, and so fail this test
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        memfd.os.fstat(descriptor)


def test_pytorchs_own_ops_and_its_ways_to_add_some_are_refused_in_words() -> None:
    for name in ("aten", "prims"):
        with pytest.raises(AttributeError, match="PyTorch's own ops are functions of gt"):
            getattr(gt.ops, name)
    assert not hasattr(gt, "library")
    assert "an op is declared by `gt.ops.Op`" in INSTEAD["library"]


@both
def arguments_have_pytorchs_names(lib: Any) -> Any:
    x, square = lib.arange(6.0).reshape(shape=(2, 3)), lib.eye(2) * 2
    half = x.half()
    kept = [lib.dropout(input=x, p=0.5, train=False), lib.alpha_dropout(x, 0.5, train=False)]
    bounds = [(lib.empty(100).uniform_(to=0.5), 0, 0.5), (lib.zeros(100).random_(**{"from": 3, "to": 5}), 3, 5)]
    return [
        lib.reshape(x, shape=(3, 2)), x.view(size=(6,)), x.view(dtype=lib.int32), x.expand(size=(2, 2, 3)),
        x.repeat(repeats=(2, 1)), lib.tile(x, dims=(2,)), *x.split_with_sizes(split_sizes=[1, 2], dim=1), x.max(other=-x),
        *x.split(split_size=2, dim=1), *lib.split(tensor=x, split_size_or_sections=2, dim=1), lib.min(x, other=x - 1),
        lib.mm(input=x, mat2=x.T), lib.cholesky_solve(input=square, input2=square), square.cholesky_solve(input2=square),
        *kept, [bool((each >= low).all() and (each < high).all()) for each, low, high in bounds],
        lib.broadcast_to(x, size=(2, 2, 3)), *lib.hsplit(x, sections=3), *x.vsplit(indices=[1]), lib.det(input=square),
        lib.swapaxes(x, axis0=0, axis1=1), lib.repeat_interleave(lib.tensor([1, 0, 2])), x.new_zeros(size=(2,)),
        lib.linalg.norm(input=x), lib.result_type(half, other=2).itemsize, lib.isin(element=2, test_elements=x),
        lib.special.chebyshev_polynomial_t(x=x, n=2), x.norm(2, 1, False, lib.float64),
    ]  # fmt: skip


def test_products_of_half_precision_come_out_in_single() -> None:
    """PyTorch does that on GPUs alone: what it gives is the product of the same numbers in float32."""
    x, bias = gt.randn(4, 5).half(), gt.randn(4, 4)
    wide = x.float() @ x.float().T
    assert gt.equal(gt.mm(x, x.T, out_dtype=gt.float32), wide)
    assert gt.equal(x[None].bmm(x.T[None], gt.float32)[0], wide)
    assert gt.equal(gt.addmm(bias, x, x.T, gt.float32), bias + wide)
    assert x.mm(x.T, out_dtype=gt.float16).dtype is gt.float16
    with pytest.raises(gt.DTypeError, match="out_dtype is that of the factors"):
        x.mm(x.T, out_dtype=gt.bfloat16)


def test_programs_of_the_ancestor() -> None:
    x = gt.from_numpy(np.ones(4, np.float32), requires_grad=True)
    first, second = x.split(split_size_or_sections=2)
    (first * 2 + second).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 1, 1]
    assert len(gt.split(x, split_size=3)) == 2
