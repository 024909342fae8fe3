"""Modules of PyTorch beside tensors: trees, comparisons, handles, samplers, and what programs ask of the compiler."""

from __future__ import annotations

import importlib
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
from beside_torch import in_both
from hypothesis import given
from hypothesis import strategies as st

import gt

pytestmark = pytest.mark.usefixtures("session")
both, test_a_program_gives_what_it_gives_in_pytorch = in_both()

Point = namedtuple("Point", "x y")  # of any kind
LEAVES = st.none() | st.integers() | st.text(max_size=2)
TREES = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), parts, max_size=3)
        | st.dictionaries(st.integers(0, 3), parts, max_size=3).map(OrderedDict)
        | st.lists(parts, max_size=3).map(lambda each: deque(each, 5))
        | st.dictionaries(st.integers(0, 3), parts, max_size=3).map(lambda each: defaultdict(list, each))
        | st.tuples(parts, parts).map(lambda pair: Point(*pair))
    ),
    max_leaves=12,
)


@given(TREES)
def test_a_tree_is_its_leaves_and_its_form(tree: Any) -> None:
    pytree = gt.utils._pytree
    leaves, form = pytree.tree_flatten(tree)
    again = pytree.tree_unflatten(leaves, form)
    assert again == tree
    assert type(again) is type(tree)
    assert form == pytree.tree_structure(again)
    assert form.num_leaves == len(leaves) == len(pytree.tree_leaves(tree))
    same = pytree.tree_map(lambda one, other: one == other, tree, again)
    assert pytree.tree_leaves(same) == [True] * len(leaves)
    with pytest.raises(ValueError, match="leaves for a form"):
        pytree.tree_unflatten([*leaves, 0], form)


@given(TREES)
def test_leaves_are_those_of_pytorch(tree: Any) -> None:
    theirs = pytest.importorskip("torch.utils._pytree")
    assert gt.utils._pytree.tree_leaves(tree) == theirs.tree_leaves(tree)
    doubled = [lib.tree_map(lambda leaf: [leaf], tree) for lib in (gt.utils._pytree, theirs)]
    assert doubled[0] == doubled[1]


def test_a_class_becomes_a_container_once() -> None:
    class Pair:
        def __init__(self, first: Any, second: Any) -> None:
            self.first, self.second = first, second

    pytree = gt.utils._pytree
    pytree.register_pytree_node(Pair, lambda pair: ([pair.first, pair.second], None), lambda parts, _: Pair(*parts))
    made = pytree.tree_map(lambda x: x * 2, {"pair": Pair(gt.ones(1), 2)})["pair"]
    assert (made.first.tolist(), made.second) == ([2.0], 4)
    assert pytree.tree_map_only(gt.Tensor, gt.Tensor.tolist, [Pair(gt.ones(1), 3)])[0].second == 3
    with pytest.raises(ValueError, match="a container already"):
        pytree.register_pytree_node(Pair, list, list)
    with pytest.raises(ValueError, match="has not the form"):
        pytree.tree_map(lambda *_: 0, [1, 2], [1])


def close(lib: Any, actual: Any, expected: Any, **options: Any) -> Any:
    """What a comparison raises, or None."""
    try:
        lib.testing.assert_close(actual, expected, **options)
    except (AssertionError, ValueError, TypeError) as error:
        return type(error).__name__
    return None


@both
def tensors_are_compared(lib: Any) -> Any:
    importlib.import_module(f"{lib.__name__}.testing")
    x = lib.tensor([1.0, 2.0, float("nan")])
    pairs = [
        (x, x, {}), (x, x, {"equal_nan": True}), (x[:2], x[:2] + 1e-6, {}), (x[:2], x[:2] + 1e-4, {}),
        (x[:2], x[:2].double(), {}), (x[:2], x[:2].double() + 1e-6, {"check_dtype": False}), (x[:2], x[:1], {}),
        (lib.arange(2), lib.arange(2), {}),
        (lib.arange(2), lib.arange(2) + 1, {}), (x[:2], x[:2] + 0.1, {"rtol": 0, "atol": 0.2}), (x, x, {"rtol": 1}),
        (x[:2].half(), x[:2].half() + 1e-3, {}), ([x[:1], 1.0], [x[:1], 1.0 + 1e-9], {}), ([x[:1]], [x[:1], 1], {}),
        ({"a": x[:1]}, {"a": x[:1] + 1}, {}), ({"a": 1}, {"b": 1}, {}), (1, 1.0, {}), (x > 1, x > 1, {}), (x[:1], "a", {}),
        (lib.tensor([1j]), lib.tensor([1.00001j]), {}), (lib.tensor(float("inf")), lib.tensor(float("inf")), {}),
    ]  # fmt: skip
    return [close(lib, actual, expected, **options) for actual, expected, options in pairs]


def test_differences_are_told() -> None:
    with pytest.raises(AssertionError, match=r"Mismatched elements: 1 / 3(.|\n)*difference: 2.0 at index \(1,\)"):
        gt.testing.assert_close(gt.zeros(3), gt.tensor([0.0, 2.0, 0.0]))
    with pytest.raises(AssertionError, match=r"not close \['a'\] \[0\]!"):
        gt.testing.assert_close({"a": [gt.zeros(1)]}, {"a": [gt.ones(1)]})
    with pytest.raises(AssertionError, match="seen: The values for attribute 'shape'"):
        gt.testing.assert_close(gt.zeros(1), gt.zeros(2), msg=lambda said: f"seen: {said}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64", "int64", "uint8", "bool"])
def test_random_tensors_are_made_within_bounds(dtype: str) -> None:
    chosen = getattr(gt, dtype)
    x = gt.testing.make_tensor(50, 2, dtype=chosen, low=0, high=2, exclude_zero=True)
    assert (x.dtype, x.shape) == (chosen, (50, 2))
    assert bool((x != 0).all())
    assert bool((x.to(gt.complex64).abs() < 3).all())
    assert gt.testing.make_tensor((), dtype=gt.float32, requires_grad=True).requires_grad


def test_a_traced_call_says_so() -> None:
    seen = []

    @gt.compile
    def doubled(x: gt.Tensor) -> gt.Tensor:
        seen.append(gt.compiler.is_compiling())
        return x * 2

    assert not gt.compiler.is_compiling()
    assert doubled(gt.ones(1)).item() == 2
    assert seen == [True]
    assert not gt.compiler.is_compiling()


def test_a_disabled_function_is_not_traced() -> None:
    @gt.compiler.disable(reason="it draws")
    def aside(x: gt.Tensor) -> gt.Tensor:
        assert not gt.compiler.is_compiling()
        return x + 1

    function = gt.compile(lambda x: aside(x) * 2)
    with pytest.warns(UserWarning, match="runs uncompiled"):
        assert [function(gt.ones(1)).item() for _ in range(8)] == [4] * 8
    assert function.stats["replays"] == 0
    assert "it draws" in function.reason
    with pytest.raises(gt.CompileError, match="it draws"):
        gt.compile(lambda x: aside(x) * 2, fullgraph=True)(gt.ones(1))


def test_what_pytorch_would_download_is_refused_in_words() -> None:
    with pytest.raises(gt.GTError, match="nothing is downloaded"):
        gt.hub.load_state_dict_from_url("https://example.org/x.pt")
    gt.hub.set_dir("cache")
    assert gt.hub.get_dir() == "cache"
    assert gt.version.__version__ == gt.__version__
    assert gt.version.cuda is None
    assert gt.fx.wrap(len) is len


@both
def handles_of_hooks(lib: Any) -> Any:
    hooks = importlib.import_module(f"{lib.__name__}.utils.hooks")
    known: OrderedDict[int, str] = OrderedDict()
    handle = hooks.RemovableHandle(known)
    known[handle.id] = "hook"
    other = hooks.RemovableHandle(known)
    handle.remove()
    handle.remove()
    registered = lib.ones(1, requires_grad=True).register_hook(lambda g: g)
    return [known, other.id != handle.id, isinstance(registered, hooks.RemovableHandle)]


@both
def shapes_are_of_a_class(lib: Any) -> Any:
    x, size = lib.ones(2, 3), lib.Size([2, 3])
    with lib.device("cpu"):
        made = lib.zeros(size)
    return [
        isinstance(x.shape, lib.Size), isinstance(x.shape, tuple), isinstance((2, 3), lib.Size), x.shape.numel(),
        x.size()[:1].numel(), isinstance(size[1:], lib.Size), size[-1], size == x.shape, lib.Size().numel(), made,
        list(lib.Tensor(size).shape), hash(size) == hash((2, 3)),
    ]  # fmt: skip


@both
def distributions_have_their_paths(lib: Any) -> Any:
    normal = importlib.import_module(f"{lib.__name__}.distributions.normal")
    return [normal.Normal is lib.distributions.Normal, lib.distributions.studentT.StudentT(3.0).mean.item()]


@given(st.integers(1, 20), st.integers(1, 5), st.booleans(), st.booleans())
def test_shares_of_a_data_set(size: int, count: int, shuffle: bool, drop: bool) -> None:
    """Together they are all of it, filled up or cut to a multiple of their number."""
    data = range(size)
    samplers = [gt.utils.data.DistributedSampler(data, count, rank, shuffle, drop_last=drop) for rank in range(count)]
    shares = [list(sampler) for sampler in samplers]
    assert {len(share) for share in shares} == {len(samplers[0])} == {size // count if drop else -(-size // count)}
    whole = [each for share in shares for each in share]
    assert set(whole) <= set(data)
    assert (len(set(whole)) == len(whole)) if drop else set(whole) == set(data)
    if not shuffle:
        theirs = pytest.importorskip("torch.utils.data").DistributedSampler
        assert shares == [list(theirs(data, count, rank, shuffle=False, drop_last=drop)) for rank in range(count)]
    for sampler in samplers:
        sampler.set_epoch(1)
    assert sorted(map(len, map(list, samplers))) == sorted(map(len, shares))


def test_a_program_of_one_process_has_the_whole() -> None:
    loader = gt.utils.data.DataLoader([*range(5)], sampler=gt.utils.data.DistributedSampler([*range(5)]), batch_size=5)
    (batch,) = loader
    assert sorted(batch.tolist()) == [*range(5)]
    with pytest.raises(ValueError, match="rank 2 is none of 2"):
        gt.utils.data.distributed.DistributedSampler([1], 2, 2)
    assert np.asarray(batch).dtype == np.int64
