"""The memory of what dies with a chain, in which the chain may write its results."""

from __future__ import annotations

from gt.worker.fusion.chains import Chain
from gt.worker.op_table.op_table import LATE_READERS


def reusable_sources(chain: Chain, dead: tuple[int, ...]) -> list[tuple[int, ...]]:
    """For each output the slots of sources that die with the chain and whose memory it may take: strip by strip, nothing reads
    such a source any more when the output is written."""
    last = {operand: at for at, value in enumerate(chain.values) for operand in value.operands}
    return [
        tuple(
            source.slot
            for number, source in enumerate(chain.sources)
            if source.slot in dead
            and source.spec == chain.values[output].call.result
            and last[number] < output + (chain.values[output].call.op not in LATE_READERS)
        )
        for output in chain.outputs
    ]
