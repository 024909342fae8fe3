from numpy import float32, int32
from numpy.typing import NDArray

def gradient(x: NDArray[float32], largest: NDArray[float32], given: NDArray[int32], out: NDArray[int32]) -> None: ...
