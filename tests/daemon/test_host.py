"""What processes tell each other of themselves and of their machines."""

from __future__ import annotations

from typing import Any

import pytest

from gt.daemon.host import host_facts, shares_processes

HERE = {"host": "a", "namespace": "pid:[1]", "boot": "0f3c", "pid": 17}


def test_a_process_is_watched_by_its_number_only_where_that_is_its_number() -> None:
    """On another machine, in another container, or on a clone of this machine, the same number is another process."""
    assert shares_processes({**HERE, "pid": 18}, HERE)
    for key in ("host", "namespace", "boot"):
        assert not shares_processes({**HERE, key: "another"}, HERE)
        assert not shares_processes({name: fact for name, fact in HERE.items() if name != key}, HERE)


@pytest.mark.parametrize("key", ["host", "namespace", "boot"])
def test_what_nobody_knows_is_not_the_same(key: str) -> None:
    """Without /proc two machines would look alike."""
    unknown: dict[str, Any] = {**HERE, key: ""}
    assert not shares_processes(unknown, unknown)


def test_this_process_shares_its_own() -> None:
    assert shares_processes(host_facts(), host_facts())
