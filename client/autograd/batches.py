"""`gt.vmap`: a function of one example as a function of a batch of them, and the weights of several models as such a batch.

Each example is a call of its own, and results are stacked, so it saves the writing and not the time: where time matters, write
the batch as a dimension, which all functions take. Any function works, with gradients inside and outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gt.client.ops import join_and_pad, random
from gt.client.tensor.tensor import Tensor
from gt.client.torch_compat.pytree import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from gt.client.nn.module import Module

RANDOMNESS: Final = ("error", "different", "same")


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The function that calls `func` for each place along a dimension of its arguments, and stacks what it returns.

    `in_dims` says which dimension of each argument that is, and None that an argument is given whole to each call; it may be
    nested as the arguments are: dicts, lists, tuples. `out_dims` says where results have it. Calls draw numbers of their own,
    with `randomness="same"` all the same ones. `chunk_size` is accepted and means nothing. Raises `ValueError` for arguments
    without such a dimension, or of several sizes.
    """
    if randomness not in RANDOMNESS:
        raise ValueError(f"vmap: randomness is one of {', '.join(RANDOMNESS)}, not {randomness!r}")

    @functools.wraps(func)
    def batched(*args: Any, **options: Any) -> Any:
        leaves, form = tree_flatten(args)
        dims = _dims(in_dims, args)
        sizes = {x.shape[dim] for x, dim in zip(leaves, dims, strict=True) if dim is not None}
        if len(sizes) != 1:
            raise ValueError(
                f"vmap: arguments have one size along the dimensions in in_dims, not {sorted(sizes) or 'none'}"
            )
        (size,) = sizes
        named, names = tree_flatten(options)
        is_batched = [isinstance(x, Tensor) for x in named]
        first = random.get_rng_state()
        rows = []
        for place in range(size):
            if randomness == "same":
                random.set_rng_state(first)
            given = [x if dim is None else x.select(dim, place) for x, dim in zip(leaves, dims, strict=True)]
            keywords = [x[place] if batch else x for x, batch in zip(named, is_batched, strict=True)]
            rows.append(tree_flatten(func(*tree_unflatten(given, form), **tree_unflatten(keywords, names))))
        results = [list(column) for column in zip(*(found for found, _ in rows), strict=True)]
        out = tree_unflatten(list(range(len(results))), rows[0][1])
        places = _dims(out_dims, out, whole=True)
        stacked = [join_and_pad.stack(each, dim) for each, dim in zip(results, places, strict=True)]
        return tree_unflatten(stacked, rows[0][1])

    return batched


def _dims(dims: Any, tree: Any, whole: bool = False) -> list[Any]:
    """A dimension, or None, for each leaf of a tree: `dims` is one for all, or nested as the tree is down to where it is one. Of
    leaves that are no tensors it is None, unless they are `whole`."""
    if isinstance(dims, int) or dims is None:
        leaves = tree_flatten(tree)[0]
        return [dims if whole or isinstance(x, Tensor) else None for x in leaves]
    if isinstance(dims, dict) and isinstance(tree, dict) and dims.keys() == tree.keys():
        return [found for key, part in tree.items() for found in _dims(dims[key], part, whole)]
    if isinstance(dims, (tuple, list)) and isinstance(tree, (tuple, list)) and len(dims) == len(tree):
        return [found for dim, part in zip(dims, tree, strict=True) for found in _dims(dim, part, whole)]
    raise ValueError(
        f"vmap: dimensions {dims!r} are not those of {type(tree).__name__}: give one for each argument or result"
    )


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of models of one form, by name, each stacked along a new first dimension, for `vmap` over
    `functional_call`. Raises `ValueError` where there is no model."""
    if not models:
        raise ValueError("stack_module_state: there is no model")
    states = [(dict(model.named_parameters()), dict(model.named_buffers())) for model in models]
    parameters = {
        name: join_and_pad.stack([mine[name].detach() for mine, _ in states]).requires_grad_(first.requires_grad)
        for name, first in states[0][0].items()
    }
    buffers = {name: join_and_pad.stack([mine[name] for _, mine in states]) for name in states[0][1]}
    return parameters, buffers
