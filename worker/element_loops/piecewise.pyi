from collections.abc import Callable, Collection, Sequence
from typing import Any

class Pieces:
    def __init__(
        self,
        calls: Sequence[tuple[Callable[..., Any] | None, tuple[int, ...]]],
        kinds: bytes,
        booleans: Collection[int],
    ) -> None: ...
    def order(self, operands: Sequence[Any]) -> int: ...
    def run(self, operands: list[Any], total: int, row: int) -> None: ...
