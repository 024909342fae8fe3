"""Makes the reference from what `gt` offers: every public name with its signature and docstring, each on one page.

A page holds the names of `gt` of some modules, or those of a submodule. A name from a module that no row of `GROUPS` has comes to
the last page, so none is missing. What is known by several names is described once; the others lead there.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import gt
from gt.public_api.name_table import public_names

GROUPS: dict[str, tuple[str, ...]] = {
    "Sessions and services": ("gt.service", "gt.tools", "gt.sharding", "gt.client.tensor_api.why"),
    "Saving and sharing": ("gt.client.io",),
    "Compiling and gradients": (
        "gt.client.compile", "gt.client.autograd", "gt.client.tensor.grad_mode", "gt.client.tensor.autocast",
        "gt.client.nn.quantized",
    ),
    "Dtypes": ("gt.ir",),
    "Creation and random numbers": (
        "gt.client.ops.creation", "gt.client.ops.random", "gt.client.torch_compat.legacy_constructors",
        "gt.client.tensor_api.interop", "gt.client.distributions",
    ),
    "Arithmetic": (
        "gt.client.ops.arithmetic", "gt.client.ops.comparisons", "gt.client.ops.complex_numbers",
        "gt.client.tensor.operands",
    ),
    "Element-wise functions": ("gt.client.ops.elementwise", "gt.client.ops.special"),
    "Reductions and sorting": (
        "gt.client.ops.reductions", "gt.client.ops.sort_scan", "gt.client.ops.statistics", "gt.client.ops.histogram_unique",
        "gt.client.ops.numerical_calculus",
    ),
    "Shapes, views and indexing": (
        "gt.client.ops.shape_ops", "gt.client.ops.join_and_pad", "gt.client.ops.triangular", "gt.client.ops.gather_scatter",
        "gt.client.ops.scatter_reductions", "gt.client.tensor_api.strided_views", "gt.client.tensor_api.view_copies",
    ),
    "Products and linear algebra": (
        "gt.client.ops.contractions", "gt.client.ops.matrix_products", "gt.client.ops.linalg",
        "gt.client.torch_compat.legacy_linalg", "gt.client.ops.spectral", "gt.client.functional.distances",
    ),
    "Functions of networks": ("gt.client.functional",),
    "In-place functions": ("gt.client.tensor_api.inplace_functions",),
    "Further names": (),
}  # fmt: skip
"""The pages of the names of `gt`, and the modules, or packages, that define what is on each."""

ELSEWHERE = {"jax", "torch"}
"""Submodules that are there only beside a library; docs/jax.md and docs/torch.md describe them."""

PARTS = {
    "nn": ("functional", "init", "parameter", "utils"),
    "utils": ("data", "checkpoint"),
    "optim": ("lr_scheduler", "swa_utils"),
}
"""Submodules of submodules that programs name."""


@dataclass
class Page:
    """A page of the reference: its title, what is said first, and the names on it with what they are."""

    title: str
    path: str
    about: str
    names: dict[str, Any] = field(default_factory=dict)


def reference_pages() -> dict[str, str]:
    """The text of every page of the reference, by its path in the site."""
    pages = [_tensor_page(), *_groups(), *_submodules()]
    places: dict[int, str] = {}
    for page in pages:
        for name, value in page.names.items():
            if _described(value):
                places.setdefault(id(value), f"{page.path}#{name}")
    texts = {page.path: _text(page, places) for page in pages}
    rows = "".join(f"| [{page.title}]({page.path}) | {_escaped(_first(page.about))} |\n" for page in pages)
    texts["index.md"] = (
        "# Reference\n\nEvery public name of `gt`, from the docstrings of this version. Names and arguments are PyTorch's where "
        "PyTorch has them; [the overview](../overview.md) says what differs. [Commands](../commands.md) "
        f"and [errors](../errors/index.md) have pages of their own.\n\n| page | what is there |\n| --- | --- |\n{rows}"
    )
    return {f"reference/{path}": text for path, text in texts.items()}


def documented_names() -> set[str]:
    """All names that have a place in the reference, as `gt.sort`."""
    return {name for page in [_tensor_page(), *_groups(), *_submodules()] for name in page.names}


def _tensor_page() -> Page:
    page = Page("gt.Tensor", "tensor.md", "The class of tensors, with its methods and attributes.")
    page.names["gt.Tensor"] = gt.Tensor
    for name in sorted(name for name in dir(gt.Tensor) if not name.startswith("_")):
        page.names[f"gt.Tensor.{name}"] = inspect.getattr_static(gt.Tensor, name)
    return page


def _groups() -> list[Page]:
    """The pages of the names of `gt`, in the order of `GROUPS`."""
    pages = {title: Page(title, f"{_slug(title)}.md", "") for title in GROUPS}
    last = list(pages)[-1]
    for name, module, _ in sorted(public_names()):
        if name == "Tensor" or module == "gt.errors":
            continue
        fits = [
            (len(each), title)
            for title, modules in GROUPS.items()
            for each in modules
            if module == each or module.startswith(each + ".")
        ]
        pages[max(fits)[1] if fits else last].names[f"gt.{name}"] = getattr(gt, name)
    for page in pages.values():
        page.about = f"{len(page.names)} names of `gt`, such as {', '.join(f'`{name}`' for name in _samples(page))}."
    return list(pages.values())


def _samples(page: Page) -> list[str]:
    """A few of the names, that a reader may know."""
    return sorted(page.names, key=lambda name: (name.endswith("_"), name != name.lower(), len(name)))[3:6]


def _submodules() -> Iterator[Page]:
    """A page for each submodule of `gt` and each of `PARTS`."""
    for name in sorted(set(gt._SUBMODULES) - ELSEWHERE):
        for path in (name, *(f"{name}.{part}" for part in PARTS.get(name, ()))):
            module = importlib.import_module(f"gt.{path}")
            page = Page(f"gt.{path}", f"gt.{path}.md", inspect.getdoc(module) or "")
            for each in getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]:
                value = getattr(module, each)
                if not isinstance(value, ModuleType):
                    page.names[f"gt.{path}.{each}"] = value
            yield page


def _described(value: Any) -> bool:
    """Whether a value is one that has a signature or a docstring of its own."""
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))


def _text(page: Page, places: dict[int, str]) -> str:
    """The page: first what is described here, then what is described elsewhere, in a table."""
    parts = [f"# {page.title}\n\n{_prose(page.about)}\n"]
    others, constants = [], []
    for name, value in page.names.items():
        at = places.get(id(value), "")
        if not _described(value):
            constants.append(f"| `{name}` | `{_constant(value)}` |\n")
        elif at == f"{page.path}#{name}":
            parts.append(_entry(name, value))
        else:
            others.append(f"| `{name}` | [{at.partition('#')[2]}]({at.removeprefix(page.path)}) |\n")
    if constants:
        parts.append("## Constants\n\n| name | value |\n| --- | --- |\n" + "".join(constants))
    if others:
        parts.append("## Other names\n\n| name | is |\n| --- | --- |\n" + "".join(others))
    return "\n".join(parts)


def _constant(value: Any) -> str:
    text = " ".join(repr(value).split()).replace("|", "\\|")
    return text if len(text) <= 80 else text[:79] + "…"


def _entry(name: str, value: Any) -> str:
    """A heading, the signature, the docstring, and of a class the methods that it defines."""
    heading = f"## {name} {{#{name}}}\n\n"
    if isinstance(value, property):
        return f"{heading}*property*\n\n{_prose(inspect.getdoc(value) or '')}\n"
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    text = f"{heading}```python\n{_signature(name, value)}\n```\n\n{_prose(inspect.getdoc(value) or '')}\n"
    return text + _methods(name, value) if inspect.isclass(value) and value is not gt.Tensor else text


def _methods(name: str, kind: type) -> str:
    """The methods and properties that a class defines itself and documents."""
    found = []
    for inner, value in vars(kind).items():
        own = getattr(value, "__func__", value).__doc__  # a docstring of a base is on the page of that
        if (
            inner.startswith("_")
            or not own
            or not _described(value)
            or inspect.isclass(value)
            or own == type(value).__doc__
        ):
            continue
        call = (
            inner if isinstance(value, property) else _signature(inner, getattr(value, "__func__", value), method=True)
        )
        found.append(f"`{call}`\n\n:   " + _prose(inspect.cleandoc(own)).replace("\n", "\n    ") + "\n")
    return "\n" + "\n".join(found) if found else ""


class _Bare:
    """An annotation that is printed as it stands in the source."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _signature(name: str, value: Any, method: bool = False) -> str:
    """How something is called, with the annotations that say something."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(…)"

    def bare(annotation: Any) -> Any:
        text = (
            annotation
            if isinstance(annotation, str)
            else annotation.__name__
            if isinstance(annotation, type)
            else repr(annotation)
        )
        text = re.sub(r"\b(?:typing|gt(?:\.\w+)*)\.(?=[A-Z])", "", text)
        return inspect.Parameter.empty if annotation is inspect.Parameter.empty or text == "Any" else _Bare(text)

    def default(held: Any) -> Any:
        return held if held is inspect.Parameter.empty else _Bare(_default(held))

    parameters = [
        each.replace(annotation=bare(each.annotation), default=default(each.default))
        for each in signature.parameters.values()
        if not (method and each.name in ("self", "cls"))
    ]
    end = inspect.Signature.empty if inspect.isclass(value) else bare(signature.return_annotation)
    whole = f"{name}{signature.replace(parameters=parameters, return_annotation=end)}"
    if method or len(whole) <= 90:
        return whole
    texts = [str(each) for each in parameters]
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        texts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        texts.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/")
    arrow = "" if end is inspect.Signature.empty else f" -> {end!r}"
    return f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){arrow}"


def _default(value: Any) -> str:
    """A default as a program would write it: not with addresses of this run."""
    text = repr(value)
    return getattr(value, "__name__", "…") if " at 0x" in text or text.startswith("<") else text


def _prose(text: str) -> str:
    """A docstring as Markdown: names of pages lead to them."""
    spans = re.split(r"(`[^`]*`)", text)
    spans = [span if span.startswith("`") else _linked(_escaped(span)) for span in spans]
    return "".join(spans)


def _linked(text: str) -> str:
    return re.sub(r"\bdocs/([\w/-]+)\.md\b", r"[\1](../\1.md)", text)


def _escaped(text: str) -> str:
    """Without what Markdown would take for HTML or emphasis."""
    return re.sub(
        r"(?<![\w`])([*_])(?=\w)|(?<=\w)(\*+)(?=[\w.,;:)])", lambda found: "\\" + found[0], text.replace("<", "&lt;")
    )


def _first(text: str) -> str:
    return re.split(r"(?<=\.)\s", text.strip())[0].replace("\n", " ").replace("|", "\\|")


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())
