"""Marks of real sessions, under every kind of config and with everything that a session can have: for tests of session files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack
import numpy as np
from builders import Lines
from law.__main__ import case, exact_case, network_case
from law.networks import Network
from law.running import Subject, inside
from marking_dispatcher import IMPROVABLE, lose, service, to_improve
from one_dispatcher import NEG, RULES, Service, configure, started

import gt
from gt.client.session import sessions
from gt.dispatcher.session_plans.plan_selection import SEARCH_AT, SWITCH_AT
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.session_marks import SessionMark, capture
from gt.ir.hints import Hints
from gt.ir.instruction import INPUT, OUTPUT, Segment, Tag, ref
from gt.wire import messages as m

PIPE: Final[dict[str, Any]] = {"strategy": "pipeline_parallel", "stages": [[0, 1], [2, 3]], "microbatches": 4}
CONFIGS: Final[dict[str, tuple[int, Any]]] = {
    "one worker": (1, None),
    "data": (4, {"sharding_config": {"net": {"strategy": "data_parallel"}}}),
    "fully sharded, uneven": (3, {"sharding_config": {"net": {"strategy": "fully_sharded"}}}),
    "pipeline and tensor": (4, {"mesh": {"stages": 2, "model": 2}, "sharding_config": {
        "net": PIPE, "layer*": {"strategy": "tensor_parallel", "dimension": 0}}}),
    "pipeline, gpipe": (4, {"sharding_config": {"net": {**PIPE, "schedule": "gpipe"}}}),
    "auto": (2, {"sharding_config": {"net": {"strategy": "auto"}, "unused": {"strategy": "auto"}}}),
    "pinned": (3, {"sharding_config": {"net": {"device": "gt:1", "priority": "batch"}}}),
    "shard and backward": (2, {"sharding_config": {
        "net": {"shard": {"axis": 0, "workers": [1, 0]}, "backward": "net_backward"},
        "net_backward": {"strategy": "replicate"}}}),
    "deterministic": (2, {"deterministic": True, "blocks": 4, "sharding_config": {"net": {"strategy": "data_parallel"}}}),
}  # fmt: skip


def mark_now(client: ClientRecord, base: Any, number: int = 5) -> SessionMark:
    """The mark of a session as it is now."""
    assert client.planner is not None
    return capture(client, dict(client.table), number, client.planner.known_speeds, base)


def mark_of(each: Service) -> SessionMark:
    """The mark of client "c"."""
    return mark_now(each.core.service.clients[b"c"], each.core.service.config)


def mark_inside() -> SessionMark:
    """The mark of the session in this process, whose dispatcher is here, too."""
    gt.flush()
    gt.synchronize()
    core = sessions.current().link.fabric.dispatcher.service  # type: ignore[attr-defined]
    (client,) = core.clients.values()
    return mark_now(client, core.config)


def trained(workers: int, config: Any, steps: int = 4) -> SessionMark:
    """That of a small network after some steps."""
    gt.connect("inproc", workers=workers, config=config)
    try:
        gt.manual_seed(0)
        random = np.random.default_rng(0)
        x, y = random.standard_normal((22, 16)).astype(np.float32), random.standard_normal((22, 6)).astype(np.float32)
        layers = [gt.nn.Linear(16, 20), gt.nn.Linear(20, 6)]
        optimizer = gt.optim.Adam([p for layer in layers for p in layer.parameters()], lr=1e-2)
        for _ in range(steps):
            with gt.signal.context("net"):
                h = gt.from_numpy(x)
                for index, layer in enumerate(layers):
                    with gt.signal.context(f"layer{index}"):
                        h = layer(h).tanh()
            loss = ((h - gt.from_numpy(y)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return mark_inside()
    finally:
        gt.disconnect()


def drawn(seed: int) -> SessionMark:
    """That of a random program or network, where it was put at random."""
    subject, places = (case, exact_case, network_case)[seed % 3](seed)
    found: list[SessionMark] = []

    def work() -> None:
        if isinstance(subject, Network):
            from law.networks import train  # not at the top: only here

            made: Any = train(subject)
        else:
            made = Subject(places[0].reload)
            made.run(subject)
        found.append(mark_inside())
        del made

    inside(places[0], work)
    return found[0]


def searched(runs: int) -> Callable[[], SessionMark]:
    """A plan that has run so often."""

    def made() -> SessionMark:
        each = to_improve()
        for at in range(runs):
            each.run(IMPROVABLE, 10 + 10 * at, [2, 3])
            each.done()
        return mark_of(each)

    return made


def refused() -> SessionMark:
    """Definitions with instructions that are not legal, and one that is none; results too large, and tensors with errors."""
    each = Service(0, expected=1)
    each.join("w0", memory=10_000)
    each.client()
    each.put(1)
    each.say("c", m.Define(3, b"\xc1"), m.Define(4, msgpack.packb([[], "", [], [["neg", [1], {}, 0]], []])))
    lines = [
        ["neg", [ref(INPUT, 0)], {}, 0], ["full", [2], {"shape": [1 << 40], "dtype": "f32"}, 0],
        ["softmax", [ref(INPUT, 0)], {"axis": 1}, 0], ["add", [ref(OUTPUT, 0), ref(OUTPUT, 2)], {}, 0],
        ["neg", [ref(OUTPUT, 0)], {}, 0],
    ]  # fmt: skip
    each.say(
        "c", m.Define(2, msgpack.packb([[["f32", [4]]], "f", [[["net"], 0, "a.py:1", []]], lines, [0, 1, 2, 3, 4]]))
    )
    for base in (10, 20, 30):
        each.run(2, base, [1], scalars=[1.0])
        each.run(2, base + 100, [base + 3], scalars=[1.0])
        each.done()
    each.run(3, 300, [1])
    return mark_of(each)


def lost() -> SessionMark:
    """Tensors that were lost with a worker, and those after it."""
    each = started(2)
    each.run(1, 10, [1])
    lose(each, "w0", returns=False)
    each.put(2)
    each.run(1, 20, [10])
    each.run(1, 30, [2])
    each.done()
    return mark_of(each)


def told() -> SessionMark:
    """Options, a config of its own, and a deadline of which it was warned."""
    each = service(2, config=RULES)
    configure(each, {"sharding_config": {"mine": {"strategy": "replicate"}}})
    each.say("c", m.Options({"verify": 0.5, "tf32": True}))
    lines = Lines()
    last = lines.input(4)
    for number in range(3):
        last = lines.op("neg", last, signal=("net", f"late{number}"))
    hints = Hints(True, "ring", (("net", 1e-12), ("net/late", 1e-15)))
    tags = tuple(Tag(tag.signal, tag.phase, tag.site, hints) for tag in lines.tags)
    plain = lines.segment(last)
    each.define(2, Segment(plain.inputs, plain.kinds, tags, plain.instructions, plain.values, plain.survivors))
    for base in (10, 20, 30):
        each.run(2, base, [1])
    each.done()
    return mark_of(each)


def scalars() -> SessionMark:
    """Plans for all kinds of scalars, and views, whose memory other tensors share."""
    each = started()
    lines = Lines()
    numbers = [lines.scalar(kind) for kind in "bifc"]
    made = [lines.op("full", number, shape=(3,), dtype=gt.complex64) for number in numbers[3:]]
    made += [lines.op("full", number, shape=(3,), dtype=gt.float32) for number in numbers[1:3]]
    made.append(lines.op("reshape", lines.input(4), shape=(2, 2)))
    each.define(2, lines.segment(*made))
    each.run(2, 10, [1], scalars=[True, 2, 0.5, 1j])
    each.define(3, NEG)
    each.done()
    return mark_of(each)


MADE: Final[dict[str, Callable[[], SessionMark]]] = {
    **{name: lambda of=of: trained(*of) for name, of in CONFIGS.items()},  # type: ignore[misc]
    **{f"{runs} runs": searched(runs) for runs in (1, SEARCH_AT, SWITCH_AT - 1, SWITCH_AT + 1)},
    "refused": refused, "lost": lost, "told": told, "scalars": scalars,
}  # fmt: skip
"""By what they have."""
