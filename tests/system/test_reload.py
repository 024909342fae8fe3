"""A session gets another config while it runs: values stay, tensors move, and what is refused changes nothing."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from effort import EFFORT

import gt
from gt import nn, optim
from gt.client.session import sessions
from gt.dispatcher.session_meshes import mesh_migration
from gt.dispatcher.state.events import Reload
from gt.service import session as face
from gt.sharding import options
from gt.sharding.config import parse
from gt.sharding.placement import format_layout

MESHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "data": {"sharding_config": {"net": {"strategy": "data_parallel"}}},
    "grid": {
        "mesh": {"data": 2, "model": 2},
        "sharding_config": {
            "net": {"strategy": "data_parallel"},
            "one": {"strategy": "tensor_parallel", "dimension": 0},
        },
    },
    "rows": {
        "mesh": {"model": 3},
        "sharding_config": {"one": {"strategy": "tensor_parallel", "dimension": 1}},
    },
    "turned": {
        "mesh": {"model": 2, "data": 2},
        "sharding_config": {"one": {"strategy": "tensor_parallel", "dimension": 1}},
    },
    "explicit": {"mesh": {"workers": 4}, "sharding_config": {"net": {"shard": {"axis": 0, "workers": [1, 3]}}}},
}


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    session = sessions.active()
    if session is not None:
        check(session)
    gt.disconnect()
    face._registered.clear()


def check(session: Any) -> None:
    fabric = session.link.fabric
    fabric.check()
    core = fabric.dispatcher
    assert not core.service.issued
    assert len(core.service.meshes) <= 1
    for worker in fabric.workers.values():
        assert len(worker.meshes) <= 1
        assert set(worker.meshes) <= set(core.service.meshes)
    ids = {tensor for client in core.service.clients.values() for tensor in client.table}
    for worker in fabric.workers.values():
        for store in worker.stored.tensors.values():
            assert set(store) <= ids, "nothing is left on a worker that nobody knows of"


class Training:
    """A small classifier, three steps of which are enough to tell whether anything was lost."""

    def __init__(self) -> None:
        gt.manual_seed(3)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)
        self.optimizer = optim.AdamW([*self.first.parameters(), *self.second.parameters()], lr=0.05)
        random = np.random.default_rng(0)
        self.x, self.y = random.normal(size=(7, 6)).astype("f"), random.normal(size=(7, 5)).astype("f")

    def step(self) -> float:
        with gt.signal.context("net"):
            x, y = gt.tensor(self.x), gt.tensor(self.y)
            with gt.signal.context("one"):
                hidden = self.first(x).tanh()
            loss = ((self.second(hidden) - y) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def losses(configs: list[str], workers: int) -> list[float]:
    gt.connect("inproc", workers=workers, config=MESHES[configs[0]])
    training = Training()
    found = [training.step()]
    for name in configs[1:]:
        gt.load_config(MESHES[name])
        found += [training.step(), training.step()]
    return found


@cache
def alone() -> list[float]:
    return losses(["nothing"] * 3, 1)


PAIRS = itertools.permutations(MESHES, 2) if EFFORT > 1 else itertools.combinations(MESHES, 2)


@pytest.mark.parametrize("pair", list(PAIRS), ids="-".join)
def test_training_goes_on_as_if_nothing_had_been(pair: tuple[str, str]) -> None:
    """From every config to every other, and back: the losses are those of one worker."""
    expected = alone()
    assert np.allclose(losses([*pair, pair[0]], 4), expected, rtol=1e-4, atol=1e-6)


def residents(session: Any) -> dict[int, str]:
    (client,) = session.link.fabric.dispatcher.service.clients.values()
    return {tensor: format_layout(entry.resident.layout) for tensor, entry in client.table.items()}


def test_parameters_are_claimed_anew() -> None:
    """On the same mesh nothing moves until a new rule meets a parameter; then that is its home."""
    rule = {"strategy": "tensor_parallel", "dimension": 0}
    session = gt.connect("inproc", workers=2, config={"mesh": {"model": 2}, "sharding_config": {"one": rule}})
    layer = nn.Linear(4, 6)
    gt.flush()

    def use() -> str:
        with gt.signal.context("one"):
            layer(gt.ones(3, 4)).numpy()
        return residents(session)[layer.weight._value.id]

    assert use() == "S0"
    before = session.facts["mesh"]
    gt.load_config({"mesh": {"model": 2}, "sharding_config": {"one": {**rule, "dimension": 1}}})
    assert session.facts["mesh"] == before
    assert residents(session)[layer.weight._value.id] == "S0"
    assert use() == "S1"


def test_a_cut_is_kept_along_axes_of_the_same_name() -> None:
    """So a model that does not fit on one worker need not fit there after a change of mesh either."""
    rule = {"one": {"strategy": "tensor_parallel", "dimension": 0}}
    session = gt.connect("inproc", workers=4, config={"mesh": {"model": 4}, "sharding_config": rule})
    with gt.signal.context("one"):
        weight = nn.Parameter(gt.arange(24.0).reshape(8, 3))
    gt.flush()
    assert residents(session)[weight._value.id] == "S0"
    gt.load_config({"mesh": {"data": 2, "model": 2}, "sharding_config": rule})
    assert residents(session)[weight._value.id] == "R|S0"
    assert np.array_equal(weight.detach().numpy(), np.arange(24.0, dtype="f").reshape(8, 3))


def test_more_than_may_be_whole_at_one_time_goes_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_migration, "GROUP_BYTES", 100)
    gt.connect("inproc", workers=4, config=MESHES["grid"])
    arrays = [np.random.default_rng(n).normal(size=(n, 3)) for n in range(20)]
    with gt.signal.context("net"):
        tensors = [gt.tensor(array) for array in arrays]
    gt.load_config(MESHES["rows"])
    for tensor, array in zip(tensors, arrays, strict=True):
        assert np.array_equal(tensor.numpy(), array)


def test_faults_stay_faults_and_scalars_and_empty_tensors_move() -> None:
    """What could not be computed says so still; a poisoned part poisons the whole, and nothing else."""
    gt.connect("inproc", workers=3, config=MESHES["nothing"])
    bad = gt.gather(gt.arange(4), 0, gt.tensor([9]))
    good, empty, number = gt.arange(5.0), gt.zeros(0, 3), gt.tensor(2.5)
    gt.flush()
    gt.load_config(MESHES["rows"])
    with pytest.raises(gt.IndexOutOfRange):
        (bad + 1).numpy()
    assert good.numpy().tolist() == [0, 1, 2, 3, 4]
    assert empty.numpy().shape == (0, 3)
    assert number.item() == 2.5


def test_a_refused_config_leaves_the_session_as_it_was() -> None:
    session = gt.connect("inproc", workers=2, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    x = gt.arange(6.0)
    with gt.signal.context("net"):
        y = x * 2
    gt.flush()
    before, config = residents(session), session.config
    for wrong in ({"mesh": {"data": 5}}, {"sharding_config": {"x": {"shard": {"axis": 0, "workers": [0, 3]}}}}):
        with pytest.raises(gt.ConfigError):
            gt.load_config(wrong)
    assert residents(session) == before
    assert session.config is config
    assert (y + x).numpy().tolist() == [0, 3, 6, 9, 12, 15]


def test_a_rule_from_python_is_a_rule_of_the_yaml() -> None:
    """Before there is a session it waits for it; afterwards it holds at once; both know their line."""
    gt.register_config("net", gt.SignalConfig(strategy="data_parallel"))
    session = gt.connect("inproc", workers=2)
    assert session.facts["mesh"] == {"data": 2}
    gt.register_config("more", [gt.SignalConfig(strategy="replicate", mesh_axis="data")])
    assert {name: rule.where.split(":")[0] for name, (rule,) in session.config.rules.items()} == {
        "net": __file__,
        "more": __file__,
    }
    with gt.signal.context("net"):
        x = gt.tensor(np.ones((4, 2)))
    assert residents(session)[x._value.id] == "S0"
    with pytest.raises(gt.ConfigError, match=rf"^{__file__}:\d+: sharding_config\.bad\.dimension: the strategy data_p"):
        gt.register_config("bad", gt.SignalConfig(strategy="data_parallel", dimension=0))
    with pytest.raises(gt.ConfigError, match=r"^SignalConfig: dimension: -1 is too small; allowed: an integer >= 0$"):
        gt.SignalConfig(strategy="tensor_parallel", dimension=-1)
    gt.disconnect()
    assert gt.connect("inproc", workers=2).facts.get("mesh") is None, "what was registered belonged to that session"


def test_options_reach_the_service_and_the_sessions_to_come() -> None:
    try:
        session = gt.connect("inproc")
        (client,) = session.link.fabric.dispatcher.service.clients.values()
        assert (gt.config.get("verify"), client.verify, gt.config.get("progress")) == (0.0, 0.0, True)
        gt.config.set({"verify": 1, "progress": False})
        assert (gt.config.get("verify"), client.verify, gt.config.get("progress")) == (1.0, 1.0, False)
        gt.config.set({"progress": True})
        assert client.verify == 1.0
        session = gt.connect("inproc")
        (client,) = session.link.fabric.dispatcher.service.clients.values()
        assert client.verify == 1.0
        for wrong in ({"verify": 2}, {"verify": True}, {"progress": 1}, {"verify": 0, "colour": "red"}):
            with pytest.raises(gt.ConfigError, match="allowed: "):
                gt.config.set(wrong)
        with pytest.raises(gt.ConfigError, match="there is no option 'colour'; allowed: verify, tf32, progress"):
            gt.config.get("colour")
        assert gt.config.get("verify") == 1.0
    finally:
        options.chosen.clear()


# the service's config


def reload(session: Any, text: str) -> None:
    fabric = session.link.fabric
    for send in fabric.dispatcher.handle(Reload(parse(text, "service.yaml")), 0.0):
        for target in send.to:
            fabric.queue.append((b"", target, send.message))
    fabric.run()


def test_another_config_of_the_service_holds_under_the_sessions_own() -> None:
    session = gt.connect("inproc", workers=4, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    with gt.signal.context("net"):
        x = gt.tensor(np.arange(8.0).reshape(4, 2))
    reload(session, "mesh: {data: 2, model: 2}\nsharding_config: {net: {strategy: replicate}, one: {strategy: auto}}")
    (client,) = session.link.fabric.dispatcher.service.clients.values()
    assert client.mesh.axes == ("data", "model")
    assert {name: rule.strategy for name, (rule,) in client.config.rules.items()} == {
        "net": "data_parallel",
        "one": "auto",
    }
    assert x.numpy().tolist() == np.arange(8.0).reshape(4, 2).tolist()
    assert residents(session)[x._value.id] == "S0|R"


def test_a_config_of_the_service_that_cannot_be_changes_nothing() -> None:
    """One that fits no worker is refused as a whole; one that a session's own contradicts, for that session."""
    session = gt.connect(
        "inproc", workers=2, config={"sharding_config": {"a": {"strategy": "data_parallel", "batch_split": 2}}}
    )
    said: list[str] = []
    core = session.link.fabric.dispatcher
    core.service.log = lambda level, text, *_, **__: said.append(f"{level}: {text}")
    gt.ones(3).numpy()
    (client,) = core.service.clients.values()
    mesh = client.mesh
    reload(session, "mesh: {data: 3}")
    assert said.pop().startswith("error: the config stays as it was: service.yaml:1: mesh: {data: 3} takes 3 workers")
    assert core.service.config is None
    reload(session, "mesh: {data: 1}")
    assert "stays with the config that it had" in said.pop()
    assert client.mesh is mesh
    assert core.service.config is not None
    assert gt.ones(3).numpy().tolist() == [1, 1, 1]
