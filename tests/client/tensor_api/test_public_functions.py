"""The table of public functions: every row has the forms that it declares, no other, and every public function has a row."""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from inspect import signature
from typing import Any

import pytest

import gt
from gt.client import composition, ops
from gt.client.tensor_api import function_methods
from gt.public_api import type_stubs
from gt.public_api.function_table import FUNCTIONS, FunctionRow
from gt.public_api.name_table import NAMES, public_names

ROWS = [(module, row) for module, rows in FUNCTIONS.items() for row in rows]
PATHS = ("gt.nn.functional", "gt.linalg", "gt.special", "gt.fft", "gt.signal.windows")
"""Where functions are public that are not names of `gt` itself."""
BY_HAND = {row.name for row in FUNCTIONS[type_stubs.INPLACE_FUNCTIONS]}
"""Functions of methods that are written by hand: `gt.fill_`."""
NAMES_STUB, METHODS_STUB, ARRAY_API_STUB = (
    set(text.splitlines()) for text in (type_stubs.names(), type_stubs.methods(), type_stubs.array_api())
)


def takes_out(function: Any) -> bool:
    return "out" in signature(function, follow_wrapped=False).parameters


def wrong(module: str, row: FunctionRow) -> Iterator[str]:
    """What does not agree with a row: a form that is missing, or one that it does not declare."""
    function = getattr(importlib.import_module(module), row.defined_as or row.name, None)
    if function is None:
        yield f"{row.name}: {module} does not define it"
        return
    yield from wrong_name(row, function)
    yield from wrong_methods(row, function)
    yield from wrong_entry(row, function)


def wrong_name(row: FunctionRow, function: Any) -> Iterator[str]:
    """What does not agree about `gt.<name>`."""
    found = getattr(gt, row.name, None)
    if not row.public:
        if row.name in gt.__all__:
            yield f"{row.name}: public=False, and gt has one"
    elif function not in (found, getattr(found, "__wrapped__", None)):
        yield f"{row.name}: gt has none of this name, or another"
    elif row.out != (takes_out(found) and not takes_out(function)):
        yield f"{row.name}: out={row.out}, and gt.{row.name} says otherwise"
    elif not any(line.endswith(f" as {row.name}") or f"def {row.name}(" in line for line in NAMES_STUB):
        yield f"{row.name}: type checkers see no gt.{row.name}"


def wrong_methods(row: FunctionRow, function: Any) -> Iterator[str]:
    """What does not agree about `x.<name>` and the in-place forms."""
    methods, written = vars(gt.Tensor), f"{row.name}_"
    if row.tensors == "both":
        function = function_methods.with_tensor(function)
    if row.method != (methods.get(row.name) is function):
        yield f"{row.name}: method={row.method}, and Tensor.{row.name} says otherwise"
    if row.method and not any(line.startswith(f"    {row.name} = ") for line in METHODS_STUB):
        yield f"{row.name}: type checkers see no Tensor.{row.name}"
    derived = function_methods.cast_in_place if row.in_place == "cast" else function_methods.in_place
    if bool(row.in_place) != (written in methods and methods[written] is derived(function)):
        yield f"{row.name}: in_place={row.in_place!r}, and Tensor.{written} says otherwise"
    if row.in_place and f"    def {written}(self, *args: Any, **options: Any) -> Tensor: ..." not in METHODS_STUB:
        yield f"{row.name}: type checkers see no Tensor.{written}"
    if (row.in_place == "function") != (written in gt.__all__ and written not in BY_HAND):
        yield f"{row.name}: in_place={row.in_place!r}, and gt.{written} says otherwise"


def wrong_entry(row: FunctionRow, function: Any) -> Iterator[str]:
    """What does not agree about `gt.array_api`."""
    name = row.array_api_name or row.name
    entry = getattr(gt.array_api, name, None)
    if row.array_api == "same" and entry is not function:
        yield f"{row.name}: array_api='same', and gt.array_api.{name} says otherwise"
    if row.array_api == "promoted" and (entry is function or getattr(entry, "__doc__", "") != function.__doc__):
        yield f"{row.name}: array_api='promoted', and gt.array_api.{name} says otherwise"
    if row.array_api and not any(line.endswith(f" as {name}") or f"def {name}(" in line for line in ARRAY_API_STUB):
        yield f"{row.name}: type checkers see no gt.array_api.{name}"


def test_every_row_has_the_forms_that_it_declares_and_no_other() -> None:
    assert [line for module, row in ROWS for line in wrong(module, row)] == []


@pytest.mark.parametrize(
    ("module", "row"),
    [
        ("gt.client.ops.elementwise", FunctionRow("nonsense")),
        ("gt.client.ops.elementwise", FunctionRow("convert")),  # defined there, and not in `gt`
        (
            "gt.client.ops.elementwise",
            FunctionRow("hypot", method=True, in_place="method", array_api="promoted"),
        ),  # no out=
        ("gt.client.ops.creation", FunctionRow("as_tensor", out=True)),
        ("gt.client.ops.creation", FunctionRow("as_tensor", method=True)),
        ("gt.client.ops.arithmetic", FunctionRow("isnan", array_api="same")),  # a method, and says nothing of it
        ("gt.client.ops.arithmetic", FunctionRow("isnan", method=True, in_place="method", array_api="same")),
        (
            "gt.client.ops.arithmetic",
            FunctionRow("relu", method=True, in_place="method"),
        ),  # and `gt.relu_` is a function
        ("gt.client.ops.arithmetic", FunctionRow("eq", method=True, in_place="method", out=True)),
        ("gt.client.ops.arithmetic", FunctionRow("rsub", array_api="same")),
        (
            "gt.client.ops.arithmetic",
            FunctionRow("abs", method=True, in_place="function", out=True, array_api="promoted"),
        ),
        ("gt.client.ops.arithmetic", FunctionRow("isnan", public=False, method=True)),
    ],
    ids=lambda value: value.name if isinstance(value, FunctionRow) else "",
)
def test_what_a_row_says_wrongly_is_named(module: str, row: FunctionRow) -> None:
    found = list(wrong(module, row))
    assert found
    assert all(line.startswith(f"{row.name}: ") for line in found)


def test_every_public_function_of_an_ops_module_has_a_row_or_a_path_of_its_own() -> None:
    declared = {(module, row.defined_as or row.name) for module, row in ROWS}
    declared |= {(module, name.split(" as ")[0]) for module, names in NAMES.items() for name in names.split(", ")}
    paths = [importlib.import_module(path) for path in PATHS]
    found = [getattr(path, name) for path in paths for name in path.__all__]
    on_paths = {id(getattr(value, "__wrapped__", value)) for value in found}
    missing = []
    for info in pkgutil.walk_packages(ops.__path__, "gt.client.ops."):
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            home = getattr(value, "__module__", info.name)
            if not {(info.name, name), (home, name)} & declared and id(value) not in on_paths:
                missing.append(f"{info.name}.{name}")
    assert missing == [], "each wants a row in gt/public_api/function_table.py"


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(("name", "tensors"), [(row.name, row.tensors) for _, row in ROWS if row.tensors])
def test_a_number_stands_for_an_operand_where_the_row_says_so(name: str, tensors: str) -> None:
    function, x = getattr(gt, name), gt.tensor([1.0, 2.0])
    advice = r"takes a tensor, not 2\.0 \(float\): gt.tensor\(2\.0\) is one"
    for keywords in ({}, {"out": gt.empty(0, dtype=function(x, x).dtype)}):
        with pytest.raises(gt.DTypeError, match=advice):
            function(2.0, x, **keywords)
    if tensors == "first":
        assert getattr(x, name)(2.0).tolist() == function(x, 2.0).tolist() == function(x, gt.tensor(2.0)).tolist()
        return
    for call in (lambda: function(x, 2.0), lambda: getattr(x, name)(2.0)):
        with pytest.raises(gt.DTypeError, match=advice):
            call()


def test_no_two_rows_and_no_method_written_by_hand_have_one_name() -> None:
    names = Counter(name for name, _, _ in public_names())
    assert [name for name, count in names.items() if count > 1] == []
    methods = Counter(name for name, _ in function_methods.function_methods())
    for written in composition.METHOD_CLASSES:
        methods.update(name for name in vars(written) if name not in composition.NOT_METHODS)
    assert [name for name, count in methods.items() if count > 1] == []


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", [row.name for _, row in ROWS if row.in_place == "cast"])
def test_truths_are_written_in_the_dtype_of_the_tensor(name: str) -> None:
    x, y = gt.tensor([0.0, 1.0, 2.0]), gt.tensor([0.0, 2.0, 1.0])
    operands = () if name == "logical_not" else (y,)
    truths = getattr(gt, name)(x, *operands)
    result = getattr(x, f"{name}_")(*operands)
    assert result is x
    assert x.dtype is gt.float32
    assert x.tolist() == truths.to(gt.float32).tolist()


def test_functions_that_are_one_have_one_in_place_form() -> None:
    assert gt.Tensor.clip_ is gt.Tensor.clamp_
    assert gt.Tensor.arcsin_ is gt.Tensor.asin_


@pytest.mark.usefixtures("session")
def test_sgn_in_place_is_that_of_complex_numbers_too() -> None:
    z = gt.tensor([3 + 4j, 0j])
    assert z.sgn_().tolist() == pytest.approx([0.6 + 0.8j, 0j])


@pytest.mark.usefixtures("session")
def test_methods_take_the_names_and_positions_of_pytorch() -> None:
    x = gt.tensor([[2.0, 1.0], [0.0, 4.0]])
    assert x.mm(mat2=x).tolist() == (x @ x).tolist()
    assert x[0].dot(tensor=x[1]).item() == 4.0
    assert x.triangular_solve(x, True).solution.tolist() == gt.eye(2).tolist()
    signal = gt.arange(16.0)
    assert signal.stft(8, 4, return_complex=True).shape == gt.stft(signal, 8, 4, return_complex=True).shape
