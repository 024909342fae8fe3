"""Options of workers: sizes and shares are read or refused, before anything starts, and by whom they may be set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gt
from gt.errors import ConfigError, SessionError
from gt.sharding import options
from gt.worker.base.backend import backend
from gt.worker.memory_limit.limiter import memory_limiter


@pytest.fixture(autouse=True)
def _nothing_set() -> Iterator[None]:
    gt.disconnect()  # a session that another test left has workers already
    yield
    gt.disconnect()
    options.for_workers.clear()


@pytest.mark.parametrize(
    ("said", "nbytes"),
    [("8GB", 8 * 10**9), ("512MiB", 2**29), ("1.5k", 1500), (4096, 4096), ("1e9", 10**9), ("0", 0), (" 2 tib ", 2**41)],
)
def test_sizes(said: Any, nbytes: int) -> None:
    """Decimal and binary units, plain numbers, blanks and cases."""
    assert options.size(said) == nbytes


@given(nbytes=st.integers(0, 10**15))
def test_any_number_of_bytes_is_itself(nbytes: int) -> None:
    """A number, said as one or as text, is that number."""
    assert options.size(nbytes) == options.size(str(nbytes)) == nbytes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("memory_pool_size", value) for value in ("8XB", -1, True, None, "nan", "1i", "", [], 1e400)),
        *(("cpu_spill_threshold", value) for value in (0, -0.5, 1.01, "much", None, float("nan"))),
        ("prefetch_buffer_size", "lots"),
        *(("nvlink_group_size", value) for value in (-1, 1.5, True, "all", None, "")),
    ],
)
def test_what_is_not_allowed(name: str, value: Any) -> None:
    """One error with the option, what was said and what is allowed; nothing of what was said with it is set."""
    with pytest.raises(ConfigError, match=f"option {name}: .* is not a (s|number)"):
        gt.config.set({"prefetch_buffer_size": 1, name: value})
    assert options.for_workers == {}


def test_an_unknown_key_names_all() -> None:
    """The options of workers are among those that are allowed."""
    with pytest.raises(
        ConfigError, match="verify, tf32, progress, memory_pool_size, nvlink_group_size, cpu_spill_threshold"
    ):
        gt.config.set({"pool": 1})


def test_they_are_for_workers_to_come() -> None:
    """What is set before the first operation is what the workers have; afterwards it is refused with what to do."""
    gt.config.set(
        {"memory_pool_size": "1MiB", "cpu_spill_threshold": 0.5, "prefetch_buffer_size": "64KiB", "verify": 0}
    )
    assert gt.config.get("memory_pool_size") == 2**20
    assert options.worker_environment() == {
        "GT_MEMORY_POOL_SIZE": "1048576", "GT_CPU_SPILL_THRESHOLD": "0.5", "GT_PREFETCH_BUFFER_SIZE": "65536",
    }  # fmt: skip
    session = gt.connect("inproc", workers=2)
    for core in session.link.fabric.workers.values():
        assert (core.stored.limiter.limit, core.stored.limiter.high, core.stored.limiter.ahead) == (2**20, 2**19, 2**16)
    with pytest.raises(ConfigError, match=r"set before the workers start.*gt\.disconnect"):
        gt.config.set({"memory_pool_size": 0})


def test_all_of_them_at_once() -> None:
    """The four options of workers, as a program sets them."""
    gt.config.set(
        {"memory_pool_size": "8GB", "nvlink_group_size": 4, "cpu_spill_threshold": 0.8, "prefetch_buffer_size": "1GB"}
    )
    assert [gt.config.get(name) for name in options.WORKER_OPTIONS] == [8 * 10**9, 4, 0.8, 10**9]
    gt.connect("inproc", workers=6)
    assert [device.group for device in gt.devices()] == ["None/cpu/0"] * 4 + ["None/cpu/1"] * 2


def test_on_a_shared_service_they_are_the_operators() -> None:
    """Whoever joins others' workers is told which option is theirs, before anything is tried."""
    gt.config.set({"memory_pool_size": "1GB"})
    with pytest.raises(
        ConfigError, match=r"belongs to whoever starts the workers of tcp://.*gt worker --memory-pool-size"
    ):
        gt.connect("tcp://127.0.0.1:1")


@pytest.mark.parametrize("name", options.WORKER_OPTIONS)
def test_each_is_refused_on_a_service_of_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session on others' workers too; the error names the operator's option and variable."""
    session = gt.connect("inproc")
    monkeypatch.setattr(session, "name", "tcp://10.0.0.1:7000")
    with pytest.raises(
        ConfigError, match=f"gt worker --{name.replace('_', '-')}.*{options.WORKER_OPTIONS[name].variable}"
    ):
        gt.config.set({name: 1})
    assert name not in options.for_workers


def test_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers read what their environment says; what is not allowed is an error that says the variable."""
    assert (
        memory_limiter({name: options.from_environment(name) for name in options.WORKER_OPTIONS}, backend("cpu"))
        is None
    )
    monkeypatch.setenv("GT_MEMORY_POOL_SIZE", "2MB")
    found = memory_limiter({name: options.from_environment(name) for name in options.WORKER_OPTIONS}, backend("cpu"))
    assert found is not None
    assert (found.limit, found.high) == (2_000_000, 1_600_000)
    monkeypatch.setenv("GT_CPU_SPILL_THRESHOLD", "two")
    with pytest.raises(SessionError, match="GT_CPU_SPILL_THRESHOLD=two is not a share above 0 and up to 1: unset it"):
        options.from_environment("cpu_spill_threshold")


def test_how_long_daemons_may_take_to_start_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is refused before anything starts, with the variable and what it may be."""
    monkeypatch.setenv("GT_START_TIMEOUT", "soon")
    with pytest.raises(SessionError, match="GT_START_TIMEOUT=soon is no number from 0: unset it, or say for example"):
        gt.init(workers=1)
