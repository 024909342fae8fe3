"""`gt ops`: the table of ops with each component's facet of it, in columns or as docs/ops.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gt.worker.op_table.row import OpRow


def ops(markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/ops.md.")] = False) -> None:
    """Print every op with each room's facet of it: gradient, sharding rule, kernel, how it is fused and captured."""
    typer.echo(ops_page() if markdown else ops_text(), nl=False)


COLUMNS = (
    "op",
    "family",
    "operands",
    "attributes",
    "gradient",
    "sharding",
    "kernel",
    "fused",
    "graph",
    "what it computes",
)


def ops_rows() -> list[tuple[str, ...]]:
    """The joined table, one row an op, in the order of `gt/ir/ops.py`; a facet that a room lacks is 'missing'."""
    from gt.client.autograd.rules.gradient_table import GRADIENTS, NO_GRADIENT
    from gt.dispatcher.planner.sharding_rules import RULES
    from gt.ir.ops import OPS
    from gt.worker.op_table.op_table import OP_TABLE

    rows: list[tuple[str, ...]] = []
    for name, op in OPS.items():
        rule, worker = RULES.get(op.family), OP_TABLE.get(name)
        rows.append(
            (
                name,
                op.family,
                _operands(op.arity, op.scalars),
                ", ".join(op.attributes),
                "yes" if name in GRADIENTS else "none" if name in NO_GRADIENT else "missing",
                rule.__name__.strip("_") if rule else "missing",
                _name_of(worker.kernel) if worker else "missing",
                _fused(worker) if worker else "missing",
                _capturable(worker) if worker else "missing",
                op.doc,
            )
        )
    return rows


def _operands(arity: int | None, scalars: str) -> str:
    """'2, scalars any': how many operands, and where Python scalars may stand."""
    count = "1 or more" if arity is None else str(arity)
    return count if scalars == "none" else f"{count}, scalars {scalars}"


def _name_of(kernel: Any) -> str:
    """'elementwise.ufunc': the worker's module and the function in it that makes the kernel."""
    module = kernel.__module__.rpartition(".")[2]
    return f"{module}.{kernel.__qualname__.partition('.')[0].strip('_')}"


def _fused(row: OpRow) -> str:
    """'CPU, GPU': where a fused chain can have the op."""
    from gt.worker.op_table.row import Without

    facets = (("CPU", row.lower), ("GPU", row.cuda))
    return ", ".join(device for device, facet in facets if facet is not None and not isinstance(facet, Without))


def _capturable(row: OpRow) -> str:
    """'yes', 'by cuBLAS' or 'no': whether a CUDA graph may hold the kernel."""
    from gt.worker.op_table.row import Capturable

    if not isinstance(row.capturable, Capturable):
        return "no"
    return "by cuBLAS" if row.capturable is Capturable.DIRECT_CUBLAS else "yes"


def ops_text() -> str:
    """The joined table in aligned columns."""
    table = [COLUMNS, *ops_rows()]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def ops_page() -> str:
    """docs/ops.md: the joined table, and how to read it."""

    def line(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"

    return "".join(
        (
            "# Ops\n\n",
            "Every instruction's op, declared once in `gt/ir/ops.py`, with each room's facet of it. Written by\n",
            "`gt ops --markdown`; a test fails while this page differs from that.\n\n",
            "* **operands**: how many; *scalars* says where Python scalars may stand in place of tensors: *any* place,\n",
            "  only the *tail* (all but the first, for an update all but the first two), or *only* scalars.\n",
            "* **gradient**: whether `client/autograd/rules/gradient_table.py` has a rule; *none*: nothing flows back, by\n",
            "  decision.\n",
            "* **sharding**: the rule in `dispatcher/planner/sharding_rules.py` from which all legal options of placements\n",
            "  follow.\n",
            "* **kernel**: the module in `worker/kernels/` and the function that makes the kernel. This and what follows is\n",
            "  one row in `worker/op_table/op_table.py`, which also says why an element-wise op is not fused or captured.\n",
            "* **fused**: the devices on which a fused chain can have the op.\n",
            "* **graph**: whether a CUDA graph may hold the kernel; *by cuBLAS*: if it calls cuBLAS without CuPy, or computes\n",
            "  integers.\n\n",
            line(COLUMNS),
            line(("---",) * len(COLUMNS)),
            *map(line, ((f"`{row[0]}`", *row[1:]) for row in ops_rows())),
        )
    )
