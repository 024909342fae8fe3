"""Attention as one instruction: PyTorch's numbers and gradients, the same under any sharding, and memory that is no matrix."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

import gt
import gt.nn.functional as F
from gt.client.functional import attention
from gt.client.session import sessions
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import bool_, float32, float64
from gt.ir.infer import infer
from gt.ir.instruction import VERIFY
from gt.ir.spec import spec
from gt.sharding.config import Config
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.kernels import attention as kernels
from gt.worker.op_table.op_table import KERNELS

Array = np.ndarray[Any, Any]
STRIP = 300
"""Bytes of a strip in which some rows of the matrices below have room, and not all."""


@pytest.fixture
def session() -> Any:
    return gt.connect("inproc", workers=1)


@pytest.fixture(autouse=True)
def one_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "FUSED_FROM_WEIGHTS", 1)


def connect(workers: int, shard: str = "", **config: Any) -> None:
    if shard:
        rule = SHARDS[shard]
        config["sharding_config"] = {
            "net": rule if "strategy" in rule else {"shard": {"workers": [*range(workers)], **rule}}
        }
    gt.connect("inproc", workers=workers, config=Config.from_plain(config))


def ops() -> list[str]:
    """Of all that the first worker has run."""
    fabric = sessions.current().link.fabric  # type: ignore[attr-defined]  # an in-memory session
    programs = next(iter(fabric.workers.values())).programs.compiled.values()
    return [instruction.op for program in programs for instruction in program.plan.instructions]


def draws(stack: tuple[int, ...], queries: int, keys: int, size: int, out: int, dtype: str = "float32") -> list[Array]:
    source = np.random.default_rng([*stack, queries, keys])
    shapes = (queries, size), (keys, size), (keys, out)
    return [source.standard_normal((*stack, *shape)).astype(dtype) for shape in shapes]


def mask_of(kind: str, stack: tuple[int, ...], queries: int, keys: int) -> Array | None:
    source = np.random.default_rng(7)
    if kind == "boolean":
        mask = source.random((queries, keys)) < 0.6
        mask[0] = False  # this query may see nothing
        return mask
    if kind == "added":
        return np.where(source.random((*stack, queries, keys)) < 0.7, source.standard_normal(keys), -np.inf)
    if kind == "padding":
        return source.random((*stack[:1], *[1] * len(stack[1:]), 1, keys)) < 0.8
    return None


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("room", [STRIP, kernels.STRIP_BYTES])
@pytest.mark.parametrize("kind", ["all", "causal", "boolean", "added", "padding"])
@pytest.mark.parametrize("stack", [(), (3,), (2, 3), (3, 1, 2)])
def test_values_and_gradients_are_pytorchs(
    stack: tuple[int, ...], kind: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(kernels, "STRIP_BYTES", room)
    for queries, keys, dtype in ((7, 9, "float32"), (8, 5, "float64"), (1, 6, "float64"), (6, 1, "float64")):
        arrays, mask = draws(stack, queries, keys, 4, 5, dtype), mask_of(kind, stack, queries, keys)
        if mask is not None and mask.dtype != bool:
            mask = mask.astype(dtype)
        ours = [gt.tensor(x, requires_grad=True) for x in arrays]
        theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
        options = {"is_causal": kind == "causal", "scale": 0.7}
        got = F.scaled_dot_product_attention(*ours, None if mask is None else gt.tensor(mask), **options)
        want = torch.nn.functional.scaled_dot_product_attention(
            *theirs, None if mask is None else torch.tensor(mask), **options
        )
        weight = np.cos(np.arange(got.numel(), dtype=dtype)).reshape(got.shape)
        got.backward(gt.tensor(weight))
        want.backward(torch.tensor(weight))
        near = 1e-5 if dtype == "float32" else 1e-9
        for mine, other in [(got, want), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]:
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), near, near)
    assert {"attention", "attention_grad"} <= set(ops())


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype: str) -> None:
    """Sums and weights are float32's: the result is that of float32, rounded."""
    wide = [gt.tensor(x).to(dtype).to("float32") for x in draws((2, 3), 12, 10, 8, 8)]
    narrow = [x.to(dtype).requires_grad_() for x in wide]
    found = F.scaled_dot_product_attention(*narrow, scale=1.0)
    found.sum().backward()
    expected = F.scaled_dot_product_attention(*(x.requires_grad_() for x in wide), scale=1.0)
    expected.sum().backward()
    assert found.dtype.name == narrow[0].grad.dtype.name == dtype
    assert found.to("float32").tolist() == expected.to(dtype).to("float32").tolist()
    for a, b in zip(narrow, wide, strict=True):
        assert a.grad.to("float32").tolist() == b.grad.to(dtype).to("float32").tolist()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("kind", ["all", "causal", "boolean", "padding"])
def test_gradients_of_gradients_are_those_of_what_it_is_composed_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def second() -> list[Array]:
        operands = [gt.tensor(x, requires_grad=True) for x in draws((2, 2), 5, 6, 3, 4, "float64")]
        mask = mask_of(kind, (2, 2), 5, 6)
        out = F.scaled_dot_product_attention(
            *operands, None if mask is None else gt.tensor(mask), is_causal=kind == "causal"
        )
        first = gt.autograd.grad(out.square().sum(), operands, create_graph=True)
        return [g.numpy() for g in gt.autograd.grad(sum(g.sin().sum() for g in first), operands)]

    found = second()
    assert "attention" in ops()
    monkeypatch.setattr(attention, "FUSED_FROM_WEIGHTS", 1 << 60)
    for a, b in zip(found, second(), strict=True):
        np.testing.assert_allclose(a, b, 1e-9, 1e-9)


def trained(stack: tuple[int, ...] = (4, 5), dtype: str = "float64") -> list[Array]:
    """Results and gradients of heads over a batch, in signals of their own."""
    with gt.signal.context("net"):
        operands = [gt.tensor(x, requires_grad=True) for x in draws(stack, 13, 11, 4, 6, dtype)]
        mask = gt.tensor(mask_of("padding", stack, 13, 11))
        out = F.scaled_dot_product_attention(*operands, mask)
        more = F.scaled_dot_product_attention(*operands, is_causal=True)
        (out * 3 + more.square()).sum().backward()
        return [x.numpy() for x in (out, more, *(x.grad for x in operands))]


SHARDS: dict[str, dict[str, Any]] = {
    "batch": {"strategy": "data_parallel"},
    "heads": {"axis": 1},
    "queries": {"axis": 2},
    "columns": {"axis": 3},
    "unlike": {"axis": 2, "workers": [0, 2]},
}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("shard", "workers"),
    [(shard, workers) for shard in SHARDS for workers in (2, 3, 4) if workers > 2 or shard != "unlike"],
)
def test_no_sharding_changes_a_value(
    shard: str, workers: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a deterministic session not a bit."""
    monkeypatch.setattr(kernels, "STRIP_BYTES", STRIP)
    connect(1, deterministic=deterministic)
    expected = trained()
    connect(workers, shard, deterministic=deterministic)
    found = trained()
    assert {"attention", "attention_grad", "move"} <= set(ops())
    for a, b in zip(found, expected, strict=True):
        if deterministic:
            assert a.tobytes() == b.tobytes()
        else:
            np.testing.assert_allclose(a, b, 1e-9, 1e-9)


@pytest.mark.parametrize("shard", ["batch", "queries"])
def test_it_passes_with_everything_checked(shard: str) -> None:
    connect(3, shard)
    gt.config.set({"verify": 1.0})
    try:
        assert np.isfinite(trained(dtype="float32")[-1]).all()
        assert VERIFY in ops()
    finally:
        gt.config.set({"verify": 0.0})


def test_queries_that_are_cut_are_neither_gathered_nor_computed_twice() -> None:
    """Each worker computes its own queries, and of what keys and values get from them its part."""
    connect(4, "queries")
    trained()
    fabric = sessions.current().link.fabric  # type: ignore[attr-defined]  # an in-memory session
    plans = [program.plan for program in next(iter(fabric.workers.values())).programs.compiled.values()]
    layouts = {
        (instruction.op, str(plan.layouts[instruction.outputs[0]][0]))
        for plan in plans
        for instruction in plan.instructions
        if instruction.op.startswith("attention")
    }
    assert layouts == {("attention", "S2"), ("attention_grad", "P(sum)")}


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("causal", [False, True])
def test_memory_does_not_grow_with_the_matrix(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 heads over 1,536 places in float32 the weights would take 19 MB; composed, they are there several times."""

    def peak(large: int) -> int:
        monkeypatch.setattr(attention, "FUSED_FROM_WEIGHTS", large)
        operands = [gt.tensor(x, requires_grad=True) for x in draws((2,), 1536, 1536, 16, 16)]
        float(operands[0].sum())  # as all the puts have arrived
        tracemalloc.start()
        try:
            F.scaled_dot_product_attention(*operands, is_causal=causal).sum().backward()
            float(sum(x.grad.sum() for x in operands))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(attention.FUSED_FROM_WEIGHTS) < 4 * kernels.STRIP_BYTES
    assert peak(1 << 60) > 4 * 2 * 1536 * 1536


@pytest.mark.usefixtures("session")
def test_what_has_no_strips_is_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (gt.tensor(x) for x in draws((2, 3), 4, 4, 4, 4))

    def composed(*operands: Any, **options: Any) -> bool:
        gt.flush()
        before = len(ops())
        F.scaled_dot_product_attention(*operands, **options).sum().item()
        return "attention" not in ops()[before:]

    assert not composed(q, k, v)
    assert composed(q, k, v, dropout_p=0.5)
    assert composed(q, k, v, gt.zeros(4, 4, requires_grad=True))
    assert composed(q, k, v, gt.zeros(5, 2, 3, 4, 4)), "a mask that adds dimensions"
    assert not composed(q, k[:1], v[:, :1]), "leading dimensions broadcast"
    assert not composed(q.repeat(1, 2, 1, 1), k, v, enable_gqa=True)
    monkeypatch.setattr(attention, "FUSED_WITHOUT_GRADIENT", 2 * 3 * 4 * 4)
    monkeypatch.setattr(attention, "FUSED_FROM_WEIGHTS", 2 * 3 * 4 * 4 + 1)
    first, second = ([gt.tensor(x) for x in draws((2, 3), 4, 4, 4, out)] for out in (2, 3))
    assert not composed(*first)
    assert composed(gt.tensor(first[0].numpy(), requires_grad=True), *first[1:]), "with a gradient from more on"
    with gt.no_grad():
        assert not composed(gt.tensor(second[0].numpy(), requires_grad=True), *second[1:])
    monkeypatch.setattr(attention, "FUSED_FROM_WEIGHTS", 2 * 3 * 4 * 3)
    assert not composed(q, k[:, :, :3], v[:, :, :3])
    assert composed(q[:, :, :3], k[:, :, :3], v[:, :, :3])


@pytest.mark.usefixtures("session")
def test_multihead_attention_and_autocast_use_it() -> None:
    model = gt.nn.MultiheadAttention(8, 2, batch_first=True)
    x = gt.randn(3, 5, 8)
    hidden = gt.tensor(np.arange(5) > 3).reshape(1, 5).repeat(3, 1)
    out, weights = model(x, x, x, key_padding_mask=hidden, need_weights=False)
    assert weights is None
    composed, _ = model(x, x, x, key_padding_mask=hidden)
    np.testing.assert_allclose(out.detach().numpy(), composed.detach().numpy(), 1e-5, 1e-6)
    with gt.autocast("cpu"):
        lowered = F.scaled_dot_product_attention(x, x, x, gt.zeros(5, 5))
    assert lowered.dtype is gt.bfloat16
    lowered.sum().item()
    assert ops().count("attention") == 2


@pytest.mark.parametrize("name", ["attention", "attention_grad"])
@pytest.mark.parametrize("blocked", [False, True])
def test_bits_do_not_depend_on_lanes_or_on_who_has_the_heads(name: str, blocked: bool) -> None:
    from gt.worker.op_table.op_table import DETERMINISTIC_KERNELS

    q, k, v = draws((3, 4), 40, 30, 8, 8)
    operands = (q, k, v, *([q] if name == "attention_grad" else []))

    def computed(threads: int, heads: slice) -> Array:
        held = [np.ascontiguousarray(x[:, heads]) for x in operands]
        specs = tuple(spec(float32, x.shape) for x in held)
        (result,) = infer(name, specs, {"causal": True})
        box = tuple((0, size) for size in result.shape)
        thread_pool = None if blocked else ThreadPool(threads)
        call = KernelCall(
            np, name, {"causal": True}, specs, result, result.shape, box, blocks=8 * blocked, thread_pool=thread_pool
        )
        out: Array = (DETERMINISTIC_KERNELS if blocked else KERNELS)[name](call)(*held)
        return out

    whole = computed(1, slice(0, 4))
    assert computed(3, slice(0, 4)).tobytes() == whole.tobytes()
    if blocked:
        for head in range(4):
            assert computed(1, slice(head, head + 1)).tobytes() == whole[:, head : head + 1].tobytes()


def test_wrong_operands_say_what_is_wrong() -> None:
    q, k, v = (spec(float64, shape) for shape in ((2, 5, 3), (2, 7, 3), (2, 7, 4)))
    causal = {"causal": True}
    assert infer("attention", (q, k, v, spec(bool_, (5, 1))), causal)[0].shape == (2, 5, 4)
    assert infer("attention_grad", (q, k, v, spec(float64, (2, 5, 4))), causal)[0].shape == (2, 5 * 3 + 7 * 3 + 7 * 4)
    for operands, error, text in (
        ((q, k), ShapeError, "3 tensors and perhaps a mask, not 2"),
        ((q, k, spec(float64, (2, 6, 4))), ShapeError, r"not \[..., l, e\]"),
        ((q, k, spec(float64, (7, 4))), ShapeError, "the same dimensions before"),
        ((q, k, v, spec(bool_, (3, 1, 5, 7))), ShapeError, "a mask of shape"),
        ((q, k, v, spec(float32, (5, 7))), DTypeError, "of one dtype"),
        ((q, k, spec(float32, (2, 7, 4))), DTypeError, "one dtype"),
    ):
        with pytest.raises(error, match=text):
            infer("attention", operands, causal)
    with pytest.raises(ShapeError, match="a gradient of shape"):
        infer("attention_grad", (q, k, v, v), causal)


def test_strips_tile_the_queries_of_any_worker() -> None:
    """And end at the same queries of the whole, wherever a worker's own begin and end."""
    for queries, causal in itertools.product((1, 7, 40), (False, True)):
        specs = (spec(float32, (queries, 4)), spec(float32, (queries, 4)), spec(float32, (queries, 4)))
        call = KernelCall(np, "attention", {"causal": causal}, specs, specs[0], (queries, 4), ((0, queries), (0, 4)))
        strips = kernels.AttentionStrips(call)
        strips.room = STRIP
        whole = list(strips.strips())
        assert [row for strip in whole for row in range(strip.rows.start, strip.rows.stop)] == list(range(queries))
        for start, stop in itertools.combinations(range(queries + 1), 2):
            strips.start, strips.stop = start, stop
            mine = list(strips.strips())
            assert [strip.first + at for strip in mine for at in range(strip.rows.stop - strip.rows.start)] == list(
                range(start, stop)
            )
            assert {strip.keys for strip in mine} <= {strip.keys for strip in whole}
