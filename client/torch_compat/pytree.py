"""Nested containers as a list of leaves and a form: PyTorch's `utils._pytree`. A leaf is what is no container, None too."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

__all__ = [
    "LeafSpec", "PyTree", "TreeSpec", "register_pytree_node", "tree_all", "tree_any", "tree_flatten", "tree_iter", "tree_leaves",
    "tree_map", "tree_map_", "tree_map_only", "tree_structure", "tree_unflatten",
]  # fmt: skip

IsLeaf = Callable[[Any], bool]
PyTree = Any
"""A container of leaves, or a leaf, in annotations."""


class Container(NamedTuple):
    """How containers of one type are taken apart and put together."""

    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    """Gives the parts of a container, and what else makes it what it is."""
    unflatten: Callable[[Iterable[Any], Any], Any]


def _named(tree: Any) -> tuple[Iterable[Any], Any]:
    return tree, type(tree)


_CONTAINERS: Final[dict[type, Container]] = {
    tuple: Container(lambda tree: (tree, None), lambda parts, _: tuple(parts)),
    list: Container(lambda tree: (tree, None), lambda parts, _: list(parts)),
    dict: Container(lambda tree: (tree.values(), list(tree)), lambda parts, keys: dict(zip(keys, parts, strict=True))),
    OrderedDict: Container(
        lambda tree: (tree.values(), list(tree)), lambda parts, keys: OrderedDict(zip(keys, parts, strict=True))
    ),
    defaultdict: Container(
        lambda tree: (tree.values(), [tree.default_factory, list(tree)]),
        lambda parts, known: defaultdict(known[0], zip(known[1], parts, strict=True)),
    ),
    deque: Container(lambda tree: (tree, tree.maxlen), lambda parts, length: deque(parts, length)),
}
_NAMED_TUPLE: Final = Container(_named, lambda parts, kind: kind(*parts))


def register_pytree_node(
    cls: type, flatten_fn: Callable[[Any], Any], unflatten_fn: Callable[[Any, Any], Any], **options: Any
) -> None:
    """Makes a class a container: `flatten_fn(x)` gives its parts and a context, from which `unflatten_fn` makes it again.

    Raises `ValueError` for a class that is one already. Names under which PyTorch would serialise it are accepted.
    """
    if cls in _CONTAINERS:
        raise ValueError(f"{cls.__name__} is a container already")
    _CONTAINERS[cls] = Container(flatten_fn, unflatten_fn)


class TreeSpec:
    """The form of a tree: its type, what `flatten` said of it, and the forms of its parts."""

    __slots__ = ("children_specs", "context", "num_leaves", "type")

    def __init__(self, type: Any, context: Any, children_specs: list[TreeSpec]) -> None:
        self.type = type
        self.context = context
        self.children_specs = children_specs
        self.num_leaves: int = sum(part.num_leaves for part in children_specs) if type is not None else 1

    @property
    def num_children(self) -> int:
        """The number of parts."""
        return len(self.children_specs)

    def is_leaf(self) -> bool:
        """Whether it is the form of a leaf."""
        return self.type is None

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this form with these leaves. Raises `ValueError` unless they are as many."""
        return tree_unflatten(leaves, self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        mine, theirs = ((each.type, each.context, each.children_specs) for each in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]  # a context may be any object

    def __repr__(self) -> str:
        return "*" if self.type is None else f"TreeSpec({self.type.__name__}, {self.context}, {self.children_specs})"


class LeafSpec(TreeSpec):
    """The form of a leaf."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None, None, [])


def _container(tree: Any) -> tuple[type, Container] | None:
    kind = type(tree)
    known = _CONTAINERS.get(kind)
    if known is None and isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return kind, _NAMED_TUPLE
    return None if known is None else (kind, known)


def _flattened(tree: Any, leaves: list[Any], is_leaf: IsLeaf | None) -> TreeSpec:
    found = None if is_leaf is not None and is_leaf(tree) else _container(tree)
    if found is None:
        leaves.append(tree)
        return LeafSpec()
    kind, container = found
    parts, context = container.flatten(tree)
    return TreeSpec(kind, context, [_flattened(part, leaves, is_leaf) for part in parts])


def tree_flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], TreeSpec]:
    """The leaves in order, and the form. What `is_leaf` says it of is a leaf too."""
    leaves: list[Any] = []
    form = _flattened(tree, leaves, is_leaf)
    return leaves, form


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree of a form with these leaves. Raises `ValueError` unless they are as many."""
    listed = list(leaves)
    if len(listed) != treespec.num_leaves:
        raise ValueError(f"tree_unflatten: {len(listed)} leaves for a form of {treespec.num_leaves}")
    left = iter(listed)

    def made(form: TreeSpec) -> Any:
        if form.type is None:
            return next(left)
        container = _CONTAINERS.get(form.type, _NAMED_TUPLE)
        return container.unflatten([made(part) for part in form.children_specs], form.context)

    return made(treespec)


def tree_iter(tree: Any, is_leaf: IsLeaf | None = None) -> Iterator[Any]:
    """The leaves in order."""
    return iter(tree_flatten(tree, is_leaf)[0])


def tree_leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf | None = None) -> TreeSpec:
    """The form."""
    return tree_flatten(tree, is_leaf)[1]


def _aligned(tree: Any, form: TreeSpec) -> list[Any]:
    """What a tree has where another has its leaves. Raises `ValueError` where the forms differ above these."""
    if form.type is None:
        return [tree]
    found = _container(tree)
    parts, context = found[1].flatten(tree) if found is not None else ((), None)
    listed = list(parts)
    keyed = form.type in (dict, OrderedDict)
    if keyed and isinstance(tree, (dict, OrderedDict)) and set(tree) == set(form.context):
        listed, context = [tree[key] for key in form.context], form.context
    if found is None or found[0] is not form.type or context != form.context or len(listed) != form.num_children:
        raise ValueError(f"tree_map: {tree!r} has not the form {form}")
    return [leaf for part, each in zip(listed, form.children_specs, strict=True) for leaf in _aligned(part, each)]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf | None = None) -> Any:
    """The tree with what a function makes of each leaf, and of what other trees have in its place."""
    leaves, form = tree_flatten(tree, is_leaf)
    return tree_unflatten(map(func, leaves, *(_aligned(rest, form) for rest in rests)), form)


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Calls a function with each leaf, as `tree_map`; returns the tree itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """`tree_map` of the leaves of one type, or of several, or of which a predicate holds; all others stay."""
    if isinstance(kind, (type, tuple)):
        return tree_map(lambda leaf: func(leaf) if isinstance(leaf, kind) else leaf, tree, is_leaf=is_leaf)
    return tree_map(lambda leaf: func(leaf) if kind(leaf) else leaf, tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf | None = None) -> bool:
    """Whether a predicate holds of all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf | None = None) -> bool:
    """Whether a predicate holds of any leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))
