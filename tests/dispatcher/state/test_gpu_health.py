"""What heartbeats say of GPUs: who may say it, who is told, and what the log says of it at night."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from one_dispatcher import Service

from gt.dispatcher.state.events import Lost, Malformed, Publish, Tick
from gt.dispatcher.state.gpu_health import SLOWDOWN_CAUSES, WARNING_PERIOD, GpuHealth
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.messages.fields import MAX_WORD_LENGTH, MAX_WORDS
from gt.worker.device.nvml import THROTTLE_REASONS

WELL = m.Health(54, 120_400, 700_000, 93, 5 << 30, 80 << 30, 0, [])
HOT = WELL._replace(temperature=92, slowed=["power cap", "hardware temperature"])


def service(workers: int = 2) -> Service:
    """Workers, each with its pulse."""
    each = Service(workers)
    for n in range(workers):
        each.hello(f"p{n}", "pulse", address=f"ipc:///w{n}")
    each.told.clear()
    each.log.clear()
    return each


def beat(each: Service, said: Any, pulse: str = "p0") -> None:
    each.say(pulse, said)


def asked(each: Service) -> list[dict[str, Any] | None]:
    """What a program is told of the workers' GPUs."""
    if b"c" not in each.core.service.clients:
        each.client()
    each.hears("c")
    each.say("c", m.Ask(1, "devices"))
    (answer,) = each.hears("c", m.Answer)
    return [facts.get("health") for _, facts in answer.facts["workers"]]


def watched(each: Service, name: str = "t") -> list[tuple[int, int, Any]]:
    """(time, worker, what it said) of the GPUs that the next batch tells of."""
    each.event(Publish(5))
    return [
        (event.time, event.worker, m.Health(*event[2:]))
        for batch in each.hears(name, m.Events)
        for event in map(t.decode_event, batch.events)
        if isinstance(event, t.Device)
    ]


def watch(each: Service, name: str = "t") -> None:
    each.hello(name, "watcher")
    each.say(name, m.Watch(t.SUMMARY, 0))


def test_a_program_that_asks_is_told_what_each_gpu_said_last() -> None:
    """A worker whose pulse only pings has no GPU that tells; what is known goes with the worker."""
    each = service()
    beat(each, m.Ping(), "p1")
    assert asked(each) == [None, None]
    beat(each, WELL)
    each.now = 1.5
    beat(each, HOT)
    each.now = 4.0
    assert asked(each) == [{**HOT._asdict(), "age": 2.5}, None]
    beat(each, m.Ping())
    assert asked(each)[0] == {**HOT._asdict(), "age": 2.5}, "a pulse without news takes nothing back"
    each.event(Lost(b"w0", "killed"))
    each.join("w9")
    assert asked(each) == [None, None]


def test_it_is_a_sign_of_life() -> None:
    each = service(1)
    for _ in range(5):
        each.now += 8.0
        beat(each, WELL)
        each.event(Tick())
    assert list(each.core.service.workers) == [b"w0"]


def test_who_watches_is_told_each_sample_once() -> None:
    """As an event of the worker, at the time when it came; of several between two batches the last; of who was lost none."""
    each = service()
    watch(each)
    assert watched(each) == []
    each.now = 2.0
    beat(each, WELL)
    beat(each, WELL, "p1")
    each.now = 3.0
    beat(each, HOT)
    assert sorted(watched(each)) == [(2 * 10**9, 1, WELL), (3 * 10**9, 0, HOT)]
    assert watched(each) == []
    beat(each, WELL, "p1")
    each.event(Lost(b"w1", "killed"))
    assert watched(each) == []


def test_who_begins_to_watch_is_told_the_last_sample_at_once() -> None:
    """Also where somebody else watches already and was told; nothing is kept for those who come when all have left."""
    each = service()
    each.now = 1.0
    beat(each, HOT)
    each.now = 2.0
    for name in ("a", "b"):
        watch(each, name)
        assert watched(each, name) == [(10**9, 0, HOT)]
        assert watched(each, name) == []


@pytest.mark.parametrize(("peer", "says"), [("c", "from a client"), ("w0", "from a worker"), ("t", "from a watcher")])
def test_only_a_pulse_may_say_it(peer: str, says: str) -> None:
    """From anybody else it is a mistake that ends their session, and nothing is believed of it."""
    each = service()
    each.client()
    watch(each)
    each.hears(peer)
    each.say(peer, HOT)
    assert [message.text for message in each.hears(peer, m.Goodbye)] == [f"Health {says}; start afresh with Hello"]
    assert not each.core.knows(peer.encode())
    assert all(worker.health.said is None for worker in each.core.service.workers.values())


def test_of_somebody_unknown_it_is_refused() -> None:
    each = service()
    beat(each, HOT, "nobody")
    (goodbye,) = each.hears("nobody")
    assert goodbye.text.startswith("Health before Hello")
    assert asked(each) == [None, None]


def test_a_pulse_that_says_anything_else_is_believed_no_more() -> None:
    """The worker itself stays as long as it is heard; a new pulse of it may come."""
    each = service(1)
    beat(each, m.Done(7))
    (goodbye,) = each.hears("p0")
    assert goodbye.text.startswith("Done from a pulse")
    beat(each, HOT)
    assert asked(each) == [None]
    each.hello("p1", "pulse", address="ipc:///w0")
    beat(each, HOT, "p1")
    assert asked(each) == [{**HOT._asdict(), "age": 0.0}]
    each.event(Malformed(b"p1", "Health.errors is -1, or a number from 0 to 2^63 - 1"))
    beat(each, WELL, "p1")
    assert asked(each) == [{**HOT._asdict(), "age": 0.0}]
    assert list(each.core.service.workers) == [b"w0"]


# the log


def test_the_log_says_when_a_gpu_is_slowed_down_and_when_no_longer() -> None:
    """Once each, with worker, device, reason, figures and what to look at. Only reasons that mean that something is wrong."""
    each = Service(0)
    each.hello("w0", "worker", address="ipc:///w0", bulk=b"b", device="cuda:1", host="node7")
    each.hello("p0", "pulse", address="ipc:///w0")
    each.log.clear()
    said = [
        WELL,
        WELL._replace(slowed=["power cap", "sync boost", "application clocks", "more\nof it"]),
        HOT,
        HOT,
        WELL,
    ]
    for number, sample in enumerate(said):
        each.now = 100.0 + 2 * number
        beat(each, sample)
    assert each.log == [
        "warning: the GPU of worker 0 (cuda:1 on node7) is slowed down: hardware temperature (92 °C, 120 W); see to its cooling",
        "info: the GPU of worker 0 (cuda:1 on node7) is no longer slowed down, after 4 s",
    ]


def test_a_gpu_that_is_slowed_down_over_and_over_is_one_pair_of_lines_a_minute() -> None:
    """And one that stays so after that minute is told of all the same."""
    health, lines = GpuHealth(), []
    for number in range(300):
        now = 2.0 * number
        lines += [(now, level) for level, _ in health.hear(HOT if number % 2 or now > 400 else WELL, now)]
    warned = [now for now, level in lines if level == "warning"]
    assert [level for _, level in lines] == ["warning", "info"] * (len(lines) // 2) + ["warning"]
    assert all(later - now >= WARNING_PERIOD for now, later in itertools.pairwise(warned))
    assert len(warned) == 400 // 64 + 1 + 1


def test_what_is_not_known_is_not_said() -> None:
    """Nor is anything made of a GPU that does not tell whether its memory is sound."""
    (line,) = GpuHealth().hear(m.Health(-1, -1, -1, -1, -1, -1, -1, ["hardware slowdown", "power brake"]), 0.0)
    assert line == (
        "warning",
        "is slowed down: hardware slowdown, power brake; see to its cooling and power supply",
    )


def test_the_log_says_when_memory_errors_grew() -> None:
    """At once, also those from before the worker came; then once a minute at most, with all that came meanwhile."""
    health, lines = GpuHealth(), []
    counts = [2, 2, 3, 4, *[4] * 30, -1, 1, 1, *[1] * 30, 2]
    for number, errors in enumerate(counts):
        said = health.hear(WELL._replace(errors=errors), 2.0 * number)
        lines += [(number, level, text.partition(";")[0]) for level, text in said]
    assert lines == [
        (number, "warning", f"has had {errors} memory errors that could not be corrected, {more} more than was known")
        for number, errors, more in ((0, 2, 2), (WARNING_PERIOD // 2, 4, 2), (len(counts) - 1, 2, 1))
    ]


def test_the_reasons_are_the_words_that_workers_say() -> None:
    assert SLOWDOWN_CAUSES.keys() <= set(THROTTLE_REASONS.values())
    assert len(THROTTLE_REASONS) <= MAX_WORDS
    assert max(map(len, THROTTLE_REASONS.values())) <= MAX_WORD_LENGTH
