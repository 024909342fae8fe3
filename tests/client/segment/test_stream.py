"""What the client emits: tags, definitions that are found again, what is saved, and that nothing leaks."""

import logging
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from ledger import sharded
from live_values import live_values, without_garbage_collector

import gt
import gt.nn.functional as F
from gt import nn, optim
from gt.client.segment.signature import segment_of
from gt.client.session import sessions
from gt.client.tensor import emission, emission_context
from gt.ir.instruction import Segment
from gt.ir.instruction_bytes import unpack_segment
from gt.wire.messages import Define

HERE = __file__


@pytest.fixture
def gathered(session: Any) -> Any:
    """The segment that this thread has gathered since the last flush."""
    gt.zeros(1)
    builder = sessions.builder()
    builder.flush()

    def read() -> Segment:
        return segment_of(builder.record, b"\1" * len(builder.record), len(builder.inputs))

    return read


def tags(segment: Segment) -> list[tuple[str, str, str]]:
    found = [(i.op, segment.tags[i.tag]) for i in segment.instructions]
    return [(op, "/".join(tag.signal), tag.phase) for op, tag in found]


def test_signals_nest_and_name_the_gradients(gathered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("outer"):
        y = x * 2
        with gt.signal.context("inner/deep", backward="deep_backward"):
            z = y * 3
            with gt.signal.context("leafy"):
                z = z + y
        assert gt.signal.current() == ("outer",)
    total = z.sum()
    assert gt.signal.current() == ()
    assert [t for t in tags(gathered()) if t[0] in ("mul", "add", "sum")] == [
        ("mul", "outer", "forward"),
        ("mul", "outer/inner/deep", "forward"),
        ("add", "outer/inner/deep/leafy", "forward"),
        ("sum", "", "forward"),
    ]
    gt.flush()
    session = x._value.owner.session
    sent: list[Any] = []
    monkeypatch.setattr(session, "sink", sent.extend)
    total.backward()
    monkeypatch.undo()
    session.sink(sent)
    (body,) = [message.body for message in sent if hasattr(message, "body")]
    backward = tags(unpack_segment(body))
    assert ("mul", "outer/inner/deep_backward", "backward") in backward
    assert ("mul", "outer", "backward") in backward
    assert {phase for _, _, phase in backward} == {"backward"}


def test_a_signal_decorates_and_is_entered_by_hand(gathered: Any) -> None:
    @gt.signal.context("step")
    def step(x: gt.Tensor, depth: int) -> gt.Tensor:
        return step(x, depth - 1) if depth else x + 1

    x = step(gt.zeros(2), 2)
    gt.signal.enter("a/b")
    x = x * 2
    with pytest.raises(gt.GTError, match="inside a/b"):
        gt.signal.exit("c")
    gt.signal.exit("b")
    x = x * 3
    gt.signal.exit("a")
    gt.signal.tensor(x, "placed")
    assert tags(gathered())[1:] == [
        ("add", "step/step/step", "forward"),
        ("mul", "a/b", "forward"),
        ("mul", "a", "forward"),
        ("tag", "placed", "forward"),
    ]
    for wrong in ("", "a//b", "/a"):
        with pytest.raises(ValueError, match="a signal is a name"):
            gt.signal.context(wrong)


def test_hints_are_noted_and_change_nothing(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gt"), gt.signal.context("hot", hot=True, comm="ring"):
        assert gt.ones(2).tolist() == [1, 1]
    assert "hot=True" in caplog.text
    assert "comm='ring'" in caplog.text


def test_a_signal_ends_with_an_error_and_grad_modes_cross_it(session: Any) -> None:
    with pytest.raises(RuntimeError), gt.signal.context("a"):
        raise RuntimeError
    assert gt.signal.current() == ()
    with gt.signal.context("a"):
        gt.set_grad_enabled(False)
    assert not gt.is_grad_enabled()
    gt.set_grad_enabled(True)


def test_each_instruction_names_the_users_line(gathered: Any) -> None:
    def compute(x: gt.Tensor) -> gt.Tensor:
        return F.cross_entropy(x, gt.zeros(2, dtype=gt.int64))

    line = compute.__code__.co_firstlineno + 1
    compute(gt.ones(2, 3))
    sites = [gathered().tags[i.tag].site for i in gathered().instructions]
    assert set(sites[1:]) == {f"{HERE}:{line}"}


def test_errors_rise_in_the_users_line(session: Any) -> None:
    with pytest.raises(gt.ShapeError) as caught:
        gt.ones(2) + gt.ones(3)
    assert caught.traceback[0].path.name == "test_stream.py"


def test_parameters_are_marked_and_what_is_made_like_them_follows(gathered: Any) -> None:
    p = nn.Parameter(gt.zeros(2))
    gt.zeros_like(p)
    gt.zeros_like(p.detach())
    with gt.no_grad():
        p.zero_()
    found = [(i.op, i.attributes.get("param")) for i in gathered().instructions]
    assert found == [
        ("full", None), ("tag", True), ("full", None), ("follow", None), ("full", None), ("full", None), ("follow", None),
    ]  # fmt: skip


def test_of_a_backward_pass_only_the_gradients_live_on() -> None:
    """What the walk itself still held would be kept by the workers, and where it is partial be added up for nobody."""
    with sharded(None, 1) as ledger:
        weights = [nn.Parameter(gt.ones(3, 3)) for _ in range(2)]
        loss = (gt.ones(3, 3) @ weights[0] @ weights[1]).sum()
        gt.flush()
        ledger.taken()
        loss.backward()
        (plan,) = ledger.taken()
        assert len(plan.survivors) == len(weights)


def test_the_tape_keeps_only_what_gradients_read(session: Any) -> None:
    w = gt.ones(4, 4, requires_grad=True)
    x = gt.ones(2, 4)
    product = x @ w
    assert [value is not None for value in product._edge.saved] == [True, False]
    assert (product + 1)._edge.saved[0] is None
    assert product.relu()._edge.output is not None
    assert list(product.relu()._edge.saved) == [None]
    both = w @ (w * 2)
    assert all(value is not None for value in both._edge.saved)


def step_once(model: Any, optimizer: Any, schedule: Any, data: Any, labels: Any, start: int) -> gt.Tensor:
    x, y = data[start : start + 16], labels[start : start + 16]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss


def training() -> tuple[Any, ...]:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4))
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    generator = np.random.default_rng(0)
    data = gt.tensor(generator.standard_normal((200, 6)).astype(np.float32))
    labels = gt.tensor(generator.integers(0, 4, 200))
    return model, optimizer, schedule, data, labels


@pytest.mark.parametrize("fetch", [True, False])
def test_no_definition_is_made_after_the_third_step(session: Any, fetch: bool) -> None:
    parts = training()
    made = []
    for number in range(10):
        loss = step_once(*parts, start=3 + 16 * number)
        if fetch:
            loss.item()
        made.append(session.definitions.made)
    assert made[3:] == [made[2]] * 7


def test_no_plan_is_made_after_the_fourth_step(session: Any) -> None:
    parts = training()
    made = []
    for number in range(8):
        step_once(*parts, start=3 + 16 * number).item()
        made.append(gt.stats()["plans_made"])
    assert made[4:] == [made[3]] * 4


def left_after_flush() -> int:
    gt.flush()
    return live_values()


def test_without_a_garbage_collector_nothing_piles_up(session: Any) -> None:
    parts = training()
    with without_garbage_collector():
        alive = []
        for number in range(8):
            loss = step_once(*parts, start=16 * (number % 3))
            if number % 2:
                loss.item()
            del loss
            alive.append(left_after_flush())
        assert alive[2:] == [alive[2]] * 6


def test_what_is_held_at_a_flush_lives_on_and_nothing_else(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held by a name, a list or the tape; a value that nobody holds never leaves its segment."""
    x = gt.ones(3, requires_grad=True)
    gt.flush()
    sent: list[Any] = []
    monkeypatch.setattr(session, "sink", sent.extend)
    y = x * 2
    z = y * y
    held = [z + 1]
    del y, z
    assert (held[0] + 1).shape == (3,)
    gt.flush()
    (body,) = [message.body for message in sent if isinstance(message, Define)]
    segment = unpack_segment(body)
    lives = {i.outputs.start: i.op for i in segment.instructions}
    assert [lives[n] for n in segment.survivors] == ["mul", "add"], "2x for the gradient of its square, and the sum"
    assert len(segment.instructions) == 4
    monkeypatch.undo()
    session.sink(sent)
    held[0].sum().backward()
    assert x.grad.tolist() == [8, 8, 8]


def test_views_and_graphs_are_freed_without_a_garbage_collector(session: Any) -> None:
    import weakref

    with without_garbage_collector():
        x = gt.ones(3, 4, requires_grad=True)
        y = (x * 2).reshape(2, 6)
        part = y[0, 1:]
        part += 1
        (part * part).sum().backward()
        x.register_hook(lambda g: g * 2)
        watched = [weakref.ref(each) for each in (x, y, part)]
        del x, y, part
        assert [each() for each in watched] == [None] * 3


def test_a_large_put_frees_what_died_and_sends_nothing_else(session: Any) -> None:
    """Its memory may serve again; what an instruction still reads, and the instruction, wait for their flush."""
    x, z = gt.ones(3), gt.ones(4)
    gt.flush()
    (client,) = session.link.fabric.dispatcher.service.clients.values()
    builder = sessions.builder()
    y = x + 1
    read, dead = x._value.id, z._value.id
    del x, z
    put = gt.from_numpy(np.zeros(100_000))
    assert len(builder.record) == 1
    assert read in client.table
    assert dead not in client.table
    assert y.tolist() == [2, 2, 2]
    assert read not in client.table
    assert put.sum().item() == 0


def test_a_fetch_that_has_no_room_is_an_error_of_that_fetch(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, nothing is waited for, and the session goes on."""
    x = gt.ones(3)

    def none(*_: Any) -> Any:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(session.link.memory, "empty", none)
        with pytest.raises(
            gt.OutOfMemory, match=r"the value of a tensor of f32\[3\] has no room in this process: none left"
        ):
            x.numpy()
    assert session.requests == {}
    assert x.tolist() == [1, 1, 1]


def test_each_thread_gathers_for_itself_and_all_see_each_others_tensors(session: Any) -> None:
    x = gt.arange(5)
    results: list[Any] = []

    def work(n: int) -> None:
        results.append((n, (x * n).sum()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((n, total.item()) for n, total in results) == [(n, 10 * n) for n in range(4)]
    total = results[0][1] + results[1][1]
    assert total.item() == 10 * (results[0][0] + results[1][0])


def test_a_tensor_of_an_ended_session_says_so() -> None:
    gt.connect("inproc", workers=1)
    old = gt.ones(2)
    gt.connect("inproc", workers=1)
    with pytest.raises(gt.SessionError, match="session that has ended"):
        old + gt.ones(2)
    with pytest.raises(gt.SessionError):
        old.numpy()
    gt.disconnect()


def test_a_loop_stays_the_same_beside_ever_new_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of signatures is bounded, and is full more than once here; those that come again are kept."""
    monkeypatch.setattr(emission, "MAX_SIGNATURES", 100)
    gt.connect("inproc", workers=1)
    start = gt.ones(4)

    def turn() -> int:
        assert ((start + 1) * start.exp()).sum().item() > 0
        return int(gt.stats()["definitions_made"])

    def many(first: int) -> None:
        for number in range(first, first + 60):
            start.expand(number + 1, 4)
        gt.flush()

    for _ in range(3):
        turn()
    for first in range(0, 600, 60):
        many(first)
        made = int(gt.stats()["definitions_made"])
        assert turn() == made
    gt.disconnect()


def test_contexts_are_interned_so_that_equal_ones_find_equal_signatures() -> None:
    first = emission_context.interned(("a",), "forward", None, True)
    assert emission_context.interned(("a",), "forward", None, True) is first
    assert emission_context.interned(("a",), "forward", None, False) is not first


def test_importing_gt_loads_nothing_heavy() -> None:
    code = (
        "import sys, gt; heavy = {'zmq', 'pydantic', 'scipy', 'yaml', 'textual', 'typer', 'gt.client'} & set(sys.modules); "
        "assert not heavy, heavy; gt.Tensor; "
        "heavy = {'zmq', 'pydantic', 'scipy', 'yaml', 'textual', 'typer'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    for name in gt.__all__:
        assert hasattr(gt, name), name
    assert set(gt.__all__) <= set(dir(gt))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gt.nonsense  # noqa: B018
    assert gt.bool is gt.bool_
    assert gt.float is gt.float32
