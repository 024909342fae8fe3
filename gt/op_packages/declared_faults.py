"""Checks the declaration of a package's op when it is imported, and tells its author what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from gt.ir.attributes import ATTRIBUTE_KINDS
from gt.ir.dtypes import BY_NAME
from gt.ir.infer import DOMAINS

from .letters import WHOLE, parse_letters

REDUCTIONS: Final = ("sum", "prod", "max", "min")
"""How workers' results may be joined where what is reduced over is cut."""
RESULT_WORDS: Final = ("same", "bool", "int64", "real", "complex")
GRADIENT_READS: Final = ("operands", "result", "both", "nothing")
MAX_VERSION: Final = 1 << 31
NUMBER_KINDS: Final[dict[type, str]] = {bool: "b", int: "i", float: "f", complex: "c"}
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


def faults_of(op: Any) -> Iterator[str]:
    """A text for each fault of a declaration, `gt.ops.Op`."""
    return chain(_of_names(op), _of_rules(op), _of_letters(op))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _of_names(op: Any) -> Iterator[str]:
    if not _is_name(op.name):
        yield "a name is small letters, digits and _, at most 64"
    if type(op.version) is not int or not 0 < op.version < MAX_VERSION:
        yield f"a version is an integer from 1, not {op.version!r}"
    if not op.operands or not isinstance(op.operands, tuple):
        yield "operands are the names of its tensors, at least one, as ('x',)"
        return
    names = (*op.operands, *op.numbers, *op.attributes)
    if len(set(names)) != len(names) or not all(map(_is_name, names)):
        yield f"operands, numbers and attributes have different names of small letters, not {', '.join(map(str, names))}"
    for name, number in op.numbers.items():
        if type(number) not in NUMBER_KINDS:
            yield f"the default of {name} is a bool, int, float or complex, not {number!r}"
    for name, form in op.attributes.items():
        if not (isinstance(form, tuple) and len(form) == 2 and form[0] in ATTRIBUTE_KINDS):
            yield f"{name} is (kind, default) with a kind of {', '.join(ATTRIBUTE_KINDS)}, not {form!r}"


def _of_rules(op: Any) -> Iterator[str]:
    if op.reduces not in ("", *REDUCTIONS):
        yield f"reduces is one of {', '.join(REDUCTIONS)}, not {op.reduces!r}"
    if not set(op.linear) <= set(op.operands):
        yield f"linear names operands, not {', '.join(op.linear)}"
    by_name = dict.fromkeys(op.operands, op.dtypes) if isinstance(op.dtypes, str) else op.dtypes
    named = [each for domain in by_name.values() if domain not in DOMAINS for each in domain.split() or [""]]
    if set(by_name) != set(op.operands) or not set(named) <= set(BY_NAME):
        yield f"dtypes are, for all operands or for each, one of {', '.join(DOMAINS)}, or names of dtypes, 'float32 float64'"
    if op.result_dtype not in (*RESULT_WORDS, *BY_NAME):
        yield f"result_dtype is one of {', '.join(RESULT_WORDS)} or a dtype's name, not {op.result_dtype!r}"
    if op.gradient_reads not in GRADIENT_READS:
        yield f"gradient_reads is one of {', '.join(GRADIENT_READS)}, not {op.gradient_reads!r}"


def _of_letters(op: Any) -> Iterator[str]:
    if not isinstance(op.letters, str):
        return
    try:
        read = parse_letters(op.letters, len(op.operands))
    except ValueError as error:
        yield str(error)
        return
    if WHOLE in read.result and op.shape is None:
        yield f"letters {op.letters!r} do not say the result's shape: give it by shape="
