"""Every public function takes the arguments that PyTorch's takes, by PyTorch's names, and in its order.

What PyTorch takes is read from its own files: the stubs of its bindings, the signatures of its functions in Python, and for
`linalg`, `fft` and `special` the schemas of ATen, as these have no stubs. What is different here is in `DIFFERENT`, each
with the reason.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import gt

torch = pytest.importorskip("torch")
FOLDER = Path(torch.__file__).parent
SCHEMAS = {"gt.linalg": "linalg_", "gt.fft": "fft_", "gt.special": "special_"}
"""Paths of which there are schemas, and what the names of these begin with."""
BY_NAME = {"Dimname", "DimnameType", "Storage"}
"""In the types of arguments for what GT has not: named tensors, storages."""

DEPRECATED = {"alpha", "beta", "value"}
"""Numbers that PyTorch's deprecated forms take before other tensors."""
LEFT_OUT = {"out", "_stacklevel"}
"""What `tests/client/tensor_api/test_public_functions.py` is for, and what is private."""
NAMED_TENSORS = "there are no named tensors"
LEGACY = "PyTorch's file says so, and PyTorch does not take it"
DIFFERENT = {
    "gt.Tensor.new": ("args other size", "values or sizes are passed by position: there are no storages"),
    "gt.Tensor.requires_grad_": ("mode", LEGACY),
    "gt.compile": ("isolate_recompiles name recompile_limit shapes_spec", "settings of PyTorch's compiler"),
    "gt.cond": ("false_fn operands pred true_fn", "the condition number of a matrix, as in `linalg`"),
    "gt.from_numpy": ("ndarray", LEGACY),
    "gt.full": ("names", NAMED_TENSORS),
    "gt.result_type": ("tensor", "which operand it is depends on the others: pass it by position"),
    "gt.save": ("_disable_byteorder_record _use_new_zipfile_serialization", "private"),
}  # fmt: skip
"""By function: the names that it does not take, and why not."""

ELSEWHERE_IN_ORDER = {
    "gt.Tensor.new_tensor": LEGACY,
    "gt.Tensor.subtract": "it is `sub`, whose alpha has a name in PyTorch too",
    "gt.Tensor.subtract_": "it is `sub_`, whose alpha has a name in PyTorch too",
    "gt.as_tensor": LEGACY,
    "gt.cond": "the condition number of a matrix",
    "gt.save": "private arguments",
    "gt.subtract": "it is `sub`, whose alpha has a name in PyTorch too",
    "gt.tensor": LEGACY,
}  # fmt: skip
"""Functions that take fewer arguments without a name, or in another order, and why."""


class Form(NamedTuple):
    """One form of a function of PyTorch's."""

    function: str
    """Where GT has it: 'gt.Tensor.view'."""
    ordered: tuple[str, ...]
    """The arguments that may be passed without a name."""
    named: tuple[str, ...]


def of_stub(file: str, home: str, *, inside: str = "") -> Iterator[Form]:
    """The forms in a stub, or in a class of it."""
    body = ast.parse((FOLDER / "_C" / file).read_text()).body
    if inside:
        (body,) = (node.body for node in body if isinstance(node, ast.ClassDef) and node.name == inside)
    for node in body:
        if not isinstance(node, ast.FunctionDef) or any(
            "property" in ast.unparse(each) for each in node.decorator_list
        ):
            continue
        given = node.args
        if any(word in ast.unparse(given) for word in BY_NAME):
            continue
        ordered = [each.arg for each in given.posonlyargs + given.args][1 if inside else 0 :]
        spread = [given.vararg.arg] if given.vararg and not ordered else []
        yield Form(f"{home}.{node.name}", tuple(ordered), (*spread, *(each.arg for each in given.kwonlyargs)))


def of_python(library: Any, home: str, *, inside: bool = False) -> Iterator[Form]:
    """The forms of functions that PyTorch has in Python."""
    for name in dir(library):
        function = getattr(library, name)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        arguments = list(inspect.signature(function, follow_wrapped=False).parameters.values())[1 if inside else 0 :]
        if not any(each.kind is each.VAR_KEYWORD for each in arguments):
            ordered = [each.name for each in arguments if each.kind is each.POSITIONAL_OR_KEYWORD]
            yield Form(f"{home}.{name}", tuple(ordered), tuple(x.name for x in arguments if x.kind is x.KEYWORD_ONLY))


def of_schemas(home: str, prefix: str) -> Iterator[Form]:
    """The forms that ATen has of what is public at a path."""
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix(f"aten::{prefix}")
        if name != schema.name and not any(each.is_out for each in schema.arguments):
            ordered = [each.name for each in schema.arguments if not each.kwarg_only]
            yield Form(f"{home}.{name}", tuple(ordered), tuple(x.name for x in schema.arguments if x.kwarg_only))


def forms() -> Iterator[Form]:
    """All forms of what is public: of functions and methods, with PyTorch's `self` as `input`."""
    yield from of_stub("_VariableFunctions.pyi", "gt")
    yield from of_stub("__init__.pyi", "gt.Tensor", inside="TensorBase")
    builtin = {f"gt.nn.functional.{name}" for name, it in vars(torch.nn.functional).items() if inspect.isbuiltin(it)}
    yield from (form for form in of_stub("_nn.pyi", "gt.nn.functional") if form.function in builtin)
    yield from of_python(torch, "gt")
    yield from of_python(torch.nn.functional, "gt.nn.functional")
    yield from of_python(torch.Tensor, "gt.Tensor", inside=True)
    for home, prefix in SCHEMAS.items():
        yield from of_schemas(home, prefix)


def found(path: str) -> Any:
    """What GT has there, or None."""
    value: Any = gt
    for part in path.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def signature(function: Any) -> tuple[inspect.Signature, set[str]]:
    """A function's signature, and all names by which arguments can be passed."""
    names: set[str] = set()
    inner = function
    while inner is not None:
        names |= set(getattr(inner, "also_named", ()))
        inner = getattr(inner, "__wrapped__", None)
    known = inspect.signature(function)
    names |= {each.name for each in known.parameters.values() if each.kind is not each.VAR_POSITIONAL}
    names |= {"input" for name in names if name == "self"}  # functions of methods that are written by hand
    return known, names


def compared() -> tuple[dict[str, set[str]], dict[str, set[tuple[str, ...]]]]:
    """By function: names that it does not take, and arguments that it does not take without a name."""
    unnamed: dict[str, set[str]] = defaultdict(set)
    unordered: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for path, ordered, named in set(forms()):
        if DEPRECATED & set(ordered[:-1]):
            continue
        function = found(path)
        if path.rpartition(".")[2].startswith("_") or not callable(function):
            continue
        ordered = tuple("input" if name == "self" else name for name in ordered if name not in LEFT_OUT)
        known, names = signature(function)
        if not any(each.kind is each.VAR_KEYWORD for each in known.parameters.values()):
            unnamed[path] |= {
                name for name in (*ordered, *named) if not {name, name.removesuffix("_")} & names
            } - LEFT_OUT
        try:
            known.bind_partial(*([None] if path.startswith("gt.Tensor.") else []), *([None] * len(ordered)))
        except TypeError:
            unordered[path].add(ordered)
    return unnamed, unordered


def test_arguments_have_the_names_of_pytorch() -> None:
    unnamed, unordered = compared()
    assert {path: " ".join(sorted(names)) for path, names in unnamed.items() if names} == {
        path: names for path, (names, _) in DIFFERENT.items() if names
    }
    assert set(unordered) == set(ELSEWHERE_IN_ORDER)
    assert len(unnamed) > 1000


def test_the_same_argument_is_not_passed_twice() -> None:
    with pytest.raises(TypeError, match="split_size and split_size_or_sections are one argument"):
        gt.ones(2).split(split_size=1, split_size_or_sections=1)
