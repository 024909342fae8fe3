"""Which chains are written as CUDA kernels, and how: sources depend on no size, and tall chains are cut up.

That the kernels compute what their steps compute is in `tests/gpu/test_chains.py`, that NVIDIA's compiler takes them in
`test_nvrtc.py`.
"""

from __future__ import annotations

from builders import Lines
from generated_samples import Sample, chains_of, compiled, layer_norm, sources_of

from gt.ir import dtypes
from gt.worker.base.backend import backend
from gt.worker.fusion.chain_shapes import LOOSE_OPS
from gt.worker.fusion.cuda import codegen, fused_kernel
from gt.worker.op_table.op_table import CPU_LOWERINGS, OP_TABLE
from gt.worker.op_table.row import Without

CPU = backend("cpu")


def test_every_op_that_can_be_written_is() -> None:
    """What chains have on CPUs they have on GPUs, but for those of which the table says why not."""
    assert all(isinstance(OP_TABLE[op].cuda, Without) for op in set(CPU_LOWERINGS) - fused_kernel.FUSED_OPS)
    assert fused_kernel.FUSED_OPS - set(CPU_LOWERINGS) == LOOSE_OPS


def test_a_source_depends_on_no_size() -> None:
    """So that it is compiled once; only rows of very different lengths have other threads."""
    one, two, long = (sources_of(compiled(layer_norm(dtypes.float32, 4, n), CPU)) for n in (64, 512, 4096))
    assert one == two
    assert one != long
    assert one == sources_of(compiled(layer_norm(dtypes.float32, 4, 64), CPU))


def test_a_tall_chain_is_cut_into_as_many_parts_as_keep_a_device_busy() -> None:
    """Rows are cut by a power of two, as far as each thread still has some; and every column has a thread."""
    for shape, parts in (((24, 40), 1), ((8192, 768), 64), ((65536, 10), 512), ((64, 1 << 20), 1), ((1 << 20, 2), 512)):
        lines = Lines()
        out = lines.op("sum", lines.op("neg", lines.input(*shape)), axes=(0,), keepdims=False)
        (chain,) = chains_of(compiled(Sample(lines, [out], []), CPU))
        kernel = codegen.kernel_of(chain)
        assert kernel.column_reduction is not None
        assert kernel.column_reduction.parts == parts, shape
        for pack in (1, kernel.pack):
            assert (kernel.column_reduction.strips(pack) - 1) * kernel.column_reduction.width * pack < shape[-1]
            assert kernel.column_reduction.strips(pack) * kernel.column_reduction.width * pack >= shape[-1]


def test_few_long_rows_are_left_to_cupy() -> None:
    """One block for a row of a million elements would leave the device idle."""
    assert not chains_of(compiled(layer_norm(dtypes.float32, 2, 1 << 20), CPU))
    assert codegen.kernel_of(chains_of(compiled(layer_norm(dtypes.float32, 200, 1 << 16), CPU))[0]).lanes == 512
