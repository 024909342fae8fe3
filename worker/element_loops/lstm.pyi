from typing import TypeAlias

from numpy import float32
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[float32]

def forward(out: Floats, x: Floats, weight: Floats, both: Floats, gates: Floats) -> None: ...
def recall(out: Floats, brought: Floats, weight: Floats, gates: Floats) -> None: ...
def backward(
    kept: Floats,
    given: Floats,
    weight: Floats,
    gates: Floats,
    recalled: Floats,
    cell: Floats,
    part: Floats,
    states: bool,
) -> None: ...
