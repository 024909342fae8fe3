"""Which workers a session has whose config only pins signals to devices: one for what is not pinned, and one for each device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def pinned_workers(
    devices: Iterable[str], names: Mapping[int, Sequence[str]], order: Sequence[int]
) -> tuple[list[int], list[str]]:
    """(the workers, that of what is not pinned first, the devices that no worker has).

    `names` are all names of the workers, `order` says which are taken first: the first of them has what is not pinned.
    """
    found, missing = [order[0]], []
    for device in devices:
        number = next((number for number in (*found, *order) if device in names[number]), None)
        if number is None:
            missing.append(device)
        elif number not in found:
            found.append(number)
    return [found[0], *sorted(found[1:])], missing
