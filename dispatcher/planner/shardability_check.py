"""Refuses rules that shard a dimension which a tensor lacks, before the segment that shows it is planned.

A weight must have the dimension that `tensor_parallel` shards, and a tensor that the program gives to a signal by name the one
that `shard` names. A tensor that a signal only creates, such as a mask, may lack the dimension, unless it has two or more
dimensions and no tensor in that signal has it; the same holds for activations that meet weights under `sequence_parallel`.
One-dimensional weights follow others, and scalars are always replicated.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

from gt.errors import ConfigError
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, Instruction, Segment, ref
from gt.ir.ops import OPS
from gt.ir.spec import Spec
from gt.turns import INSTRUCTIONS_PER_TURN, NAMES_PER_TURN

from .choice_key import PRODUCT_FAMILIES
from .policy import Policy, RequestedPlacement

if TYPE_CHECKING:
    from .choice_cache import ResidentPlacement

CREATION_FAMILIES: Final = frozenset({"creation", "random"})
"""Families of ops that create tensors without operands."""


def check_shardability(
    policy: Policy, segment: Segment, residents: Sequence[ResidentPlacement]
) -> Generator[None, None, None]:
    """Raise `ConfigError` for the first rule whose dimension is missing where it is required. Checks in turns."""
    asked = yield from _asked(policy, segment)
    if not asked:
        return
    weights = {
        ref(INPUT, n): segment.inputs[n]
        for n, resident in enumerate(residents)
        if resident.param and not resident.bound
    }
    made: dict[str, tuple[RequestedPlacement, Instruction, Spec]] = {}
    most: dict[str, int] = {}
    for at, instruction in enumerate(segment.instructions, 1):
        if not at % INSTRUCTIONS_PER_TURN:
            yield
        result, marked = segment.values[instruction.outputs[0]], instruction.op == "tag"
        if marked and instruction.attributes["param"]:
            weights[ref(OUTPUT, instruction.outputs[0])] = result
        for request in asked.get(instruction.tag, ()):
            assert request.dimension is not None, "only such were asked for"
            read = [_spec(segment, r) for r in instruction.inputs if r & 3 != SCALAR]
            if request.strategy == "tensor_parallel":
                for spec in (weights[r] for r in instruction.inputs if r in weights):
                    if 2 <= spec.ndim <= request.dimension:
                        raise _lacking(segment, instruction, request, spec, "the weight")
                continue
            most[request.where] = max(most.get(request.where, 0), *(spec.ndim for spec in (result, *read)))
            named = marked and not instruction.attributes["param"] and request.strategy == "shard"
            if named and 0 < result.ndim <= request.dimension:
                raise _lacking(segment, instruction, request, result, "the tensor")
            suspect = _suspect(instruction, request, read[0] if read else result, result)
            if suspect is not None:
                made.setdefault(request.where, (request, instruction, suspect))
    for where, (request, instruction, result) in made.items():
        if most[where] <= (request.dimension or 0):
            raise _lacking(segment, instruction, request, result, "the tensor")


def _asked(policy: Policy, segment: Segment) -> Generator[None, None, dict[int, tuple[RequestedPlacement, ...]]]:
    """By tag, the requests for a dimension."""
    asked, names = {}, 0
    for number, tag in enumerate(segment.tags):
        if names > NAMES_PER_TURN:
            names = 0
            yield
        names += 1 + len(tag.signal)
        if tag.phase != "backward" and (requests := _dimensions(policy, tag.signal)):
            asked[number] = requests
    return asked


def _suspect(instruction: Instruction, request: RequestedPlacement, first: Spec, result: Spec) -> Spec | None:
    """The spec of an operand or result that lacks the dimension, which is an error unless other tensors in the signal have it."""
    family, dimension = OPS[instruction.op].family, request.dimension or 0
    if request.strategy == "sequence_parallel":
        return first if family in PRODUCT_FAMILIES and first.ndim <= dimension else None
    return result if family in CREATION_FAMILIES and 1 < result.ndim <= dimension else None


def _dimensions(policy: Policy, path: tuple[str, ...]) -> tuple[RequestedPlacement, ...]:
    requests = policy.requests(path)
    return tuple(
        {
            request.where: request
            for request in requests
            if request is not None
            and request.dimension is not None
            and request.strategy in ("tensor_parallel", "shard", "sequence_parallel")
        }.values()
    )


def _spec(segment: Segment, r: int) -> Spec:
    return segment.inputs[r >> 2] if r & 3 == INPUT else segment.values[r >> 2]


def _lacking(
    segment: Segment, instruction: Instruction, request: RequestedPlacement, spec: Spec, what: str
) -> ConfigError:
    tag = segment.tags[instruction.tag]
    return ConfigError(
        f"{request.where}: signal {'/'.join(tag.signal)}: {request.strategy} cuts dimension {request.dimension}, "
        f"which {what} {spec} lacks ({tag.site}); allowed: {' or '.join(map(str, range(spec.ndim)))}"
    )
