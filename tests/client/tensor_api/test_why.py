"""`gt.why`: how a tensor came to be, where it lives, what it waits for; without sending anything but the question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import MAX_HISTORY_MESSAGES


def steps(found: Any) -> list[str]:
    """The instructions, without where they come from."""
    return [step.text for step in found.steps]


def test_what_is_not_sent_stays_where_it_is(session: Any) -> None:
    x = gt.tensor(np.ones((2, 3), np.float32))
    with gt.signal.context("mlp"):
        y = (x + 1).relu()
    before = session.sent
    found = gt.why(y)
    assert session.sent == before
    relu, add, put = steps(found)
    assert relu.endswith(" f32[2,3] = relu " + add.split()[0])
    assert " = add " in add
    assert put.endswith(" = put by the program")
    assert found.steps[0].tag.signal == ("mlp",)
    assert "test_why.py:" in str(found)
    assert "instruction 2 of 2 that were gathered and not sent yet" in found.waits


def test_what_was_computed_says_where_it_lives() -> None:
    gt.connect("inproc", workers=2, config={"sharding_config": {"a": {"strategy": "data_parallel"}}})
    with gt.signal.context("a"):
        y = gt.tensor(np.ones((5, 3), np.float32)) * 2.5
    y.numpy()
    found = gt.why(y)
    assert found.place["held"] == [[0, 36], [1, 24]]
    assert "S0 on the mesh {data: 2}" in str(found)
    assert "  worker 1: 24 bytes" in str(found)
    assert found.waits.startswith("nothing: ")
    assert steps(found)[0].endswith(", 2.5")
    gt.disconnect()


def test_a_chain_is_bounded_and_says_what_it_leaves_out(session: Any) -> None:
    x = gt.ones(3)
    for _ in range(100):
        x = x + x
    x.numpy()
    found = gt.why(x, depth=4)
    assert len(found.steps) == 4
    assert "and 1 tensor before these" in str(found)
    assert len(gt.why(x, depth=1000).steps) <= 40


def test_compiled_functions_are_seen_through(session: Any) -> None:
    step = gt.compile(lambda a: (a * 3).sum())
    x = gt.arange(4, dtype=gt.float32)
    for _ in range(5):
        y = step(x)
    assert session.stats()["compiled"]["replays"] > 0
    total, product = steps(gt.why(y, depth=2))
    assert " = sum " in total
    assert product.endswith(", 3.0")


def test_what_is_forgotten_is_said_to_be(session: Any) -> None:
    x = gt.ones(3)
    x.numpy()
    for _ in range(MAX_HISTORY_MESSAGES + 1):
        (x + 1).numpy()
    found = gt.why(x)
    assert "made earlier than the last" in steps(found)[0]
    assert found.place["state"] == "computed"


def test_views_and_gradients_have_reasons_too(session: Any) -> None:
    w = gt.nn.Parameter(gt.ones(3, 4))
    (w * 2).sum().backward()
    assert w.grad is not None
    assert gt.why(w.grad).steps[0].tag.phase == "backward"
    assert " = slice " in steps(gt.why(w.detach()[1:]))[0]


def test_a_failed_tensor_says_its_error(session: Any) -> None:
    x = gt.ones(3)
    session.flush()
    table = next(iter(session.link.fabric.dispatcher.service.clients.values())).table
    from dataclasses import replace

    table[x._value.id] = replace(table[x._value.id], fault=("WorkerLost", "worker 0 was lost"))
    assert gt.why(x).waits == "nothing: it failed, WorkerLost: worker 0 was lost"


def test_after_a_fetch_it_is_known_whether_there_is_a_value(session: Any) -> None:
    """Where a worker could not compute it, only the fetch tells: from then on so does the answer, of this tensor alone."""
    x = gt.tensor(np.arange(4.0))
    good, bad = x + 1, x[gt.tensor(np.array([7]))]
    gt.flush()
    assert "or the error of what made it" in gt.why(bad).waits
    with pytest.raises(gt.errors.GTError) as caught:
        bad.numpy()
    good.numpy()
    kind, text = type(caught.value).__name__, str(caught.value)
    assert gt.why(bad).waits == f"nothing: it failed, as its last fetch said, {kind}: {text}"
    assert gt.why(good).waits == "nothing: its value is there, and was fetched"


def test_outcomes_of_fetches_are_bounded(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.client.session.session.MAX_HISTORY_MESSAGES", 3)
    x = gt.ones(2)
    for n in range(10):
        (x + n).numpy()
    assert len(session.outcomes) == 3


@pytest.mark.parametrize(("thing", "kind"), [(5, "int"), ("%1.0", "str"), (None, "NoneType")])
def test_what_is_no_tensor_has_no_reasons(session: Any, thing: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"^gt.why tells of a tensor, and this is {kind}$"):
        gt.why(thing)


def test_a_tensor_of_an_ended_session_has_no_reasons() -> None:
    gt.connect("inproc")
    x = gt.ones(3)
    gt.disconnect()
    with pytest.raises(gt.SessionError, match="has ended"):
        gt.why(x)
