"""Which mesh a sharding config asks for, given or derived, and where it does not fit."""

import pytest
from config_samples import GOOD, PIPE, rules
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import ConfigError
from gt.sharding.config import Config, parse
from gt.sharding.config_meshes import busiest_last
from gt.turns import finish

EXPLICIT = rules("a: {shard: {axis: 1, workers: [0, 3]}}")


@pytest.mark.parametrize(
    ("text", "workers", "mesh"),
    [
        ("", 4, {"workers": 1}),
        (rules("a: {compile: true}"), 4, {"workers": 1}),
        ("mesh: {data: 2, model: 2}", 4, {"data": 2, "model": 2}),
        ("mesh: {data: 2, model: 2}", 7, {"data": 2, "model": 2}),
        ("mesh: {model: 2, data: 1}", 2, {"model": 2, "data": 1}),
        ("mesh: {data: auto}", 1, {"data": 1}),
        ("mesh: {data: auto}", 5, {"data": 5}),
        ("mesh: {data: auto, model: 2}", 5, {"data": 2, "model": 2}),
        ("mesh: {a: 2, data: auto, model: 2}", 13, {"a": 2, "data": 3, "model": 2}),
        ("mesh: {data: auto}\ndeterministic: true", 11, {"data": 8}),
        ("mesh: {data: 2, model: auto}\n" + rules("a: {strategy: tensor_parallel, replicas: 2}"), 6, {"data": 2, "model": 3}),
        ("mesh: {data: 2, model: auto}\n" + rules("a: {strategy: data_parallel, batch_split: 2}"), 5, {"data": 2, "model": 2}),
        (rules("a: {strategy: data_parallel}"), 5, {"data": 5}),
        (rules("a: {strategy: data_parallel, batch_split: 2}"), 5, {"data": 2}),
        (rules("a: {strategy: data_parallel}", "b: {strategy: data_parallel, batch_split: 3}"), 4, {"data": 3}),
        (rules("a: {strategy: data_parallel, mesh_axis: rows}"), 4, {"rows": 4}),
        (rules("a: {strategy: tensor_parallel}"), 3, {"model": 3}),
        (rules("a: {strategy: tensor_parallel, replicas: 1}"), 3, {"model": 3}),
        (rules("a: {strategy: tensor_parallel, replicas: 2}"), 4, {"replicas": 2, "model": 2}),
        (rules("a: {strategy: tensor_parallel, mesh_axis: data}", "b: {strategy: data_parallel}"), 4, {"data": 4}),
        (
            rules("a: {strategy: tensor_parallel, replicas: 2}", "b: {strategy: data_parallel}"),
            6,
            {"data": 2, "model": 3},
        ),
        (
            rules("a: {strategy: tensor_parallel}", "b: {strategy: data_parallel, batch_split: 2}"),
            5,
            {"data": 2, "model": 2},
        ),
        (
            rules("a: {strategy: tensor_parallel, replicas: 4}", "b: {strategy: data_parallel, batch_split: 2}"),
            8,
            {"replicas": 2, "data": 2, "model": 2},
        ),
        (rules("a: {strategy: replicate}"), 4, {"workers": 4}),
        (EXPLICIT, 4, {"workers": 4}),
        (EXPLICIT + "\n  b: {strategy: data_parallel}", 4, {"data": 4}),
        (GOOD, 4, {"data": 2, "model": 2}),
        (rules("a: {strategy: fully_sharded}"), 4, {"data": 4}),
        (rules("a: {strategy: sequence_parallel}", "b: {strategy: tensor_parallel}"), 4, {"model": 4}),
        (rules("a: {strategy: expert_parallel}"), 3, {"expert": 3}),
        (rules("a: {strategy: auto}"), 3, {"workers": 3}),
        (rules("a: {device: cpu}"), 3, {"workers": 1}),
        (rules("a: {strategy: pipeline_parallel, stages: [[0], [1]]}"), 5, {"stages": 2}),
        (rules("a: {" + PIPE + "}"), 5, {"stages": 2, "data": 2}),
        (rules("a: {" + PIPE + ", mesh_axis: data}"), 4, {"data": 2, "replicas": 2}),
        (rules("a: {" + PIPE + "}", "b: {strategy: tensor_parallel}"), 5, {"stages": 2, "model": 2}),
        (rules("a: {" + PIPE + "}", "b: {strategy: tensor_parallel, replicas: 2}"), 4, {"stages": 2, "model": 2}),
        (rules("b: {strategy: data_parallel}", "a: {" + PIPE + "}"), 4, {"stages": 2, "data": 2}),
        (
            rules(
                "a: {strategy: pipeline_parallel, stages: [[4, 5, 6, 7], [0, 1, 2, 3]]}",
                "b: [{strategy: data_parallel, batch_split: 2}, {strategy: tensor_parallel}]",
            ),
            9,
            {"stages": 2, "data": 2, "model": 2},
        ),
        (
            rules(
                "a: {strategy: pipeline_parallel, stages: [[0, 1], [2, 3]]}",
                "b: {strategy: pipeline_parallel, stages: [[2, 3], [4, 5]]}",
            ),
            6,
            {"stages": 3, "data": 2},
        ),
        ("mesh: {data: 2, stages: 2}\n" + rules("a: {strategy: pipeline_parallel, stages: [[1, 3], [2, 0]]}"), 4,
         {"data": 2, "stages": 2}),
    ],
)  # fmt: skip
def test_a_mesh_is_given_or_derived(text: str, workers: int, mesh: dict[str, int]) -> None:
    assert list(parse(text).mesh_for(workers).items()) == list(mesh.items())


ASK = "allowed: say it, for example mesh: {data: 2, model: 2}"


@pytest.mark.parametrize(
    ("text", "workers", "message"),
    [
        (
            "\nmesh: {data: 2, model: 2}",
            3,
            "x.yaml:2: mesh: {data: 2, model: 2} takes 4 workers, there are 3 workers; allowed: a mesh that takes at most 3",
        ),
        (
            "mesh: {data: auto, model: 4}",
            3,
            "x.yaml:1: mesh: {data: auto, model: 4} takes at least 4 workers, there are 3 workers;"
            " allowed: a mesh that takes at most 3",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 2}"),
            1,
            "x.yaml:2: sharding_config.a.batch_split: 2 parts need as many workers, there is 1 worker; allowed: 1 to 1",
        ),
        (
            rules("a: {strategy: tensor_parallel, replicas: 4}"),
            6,
            "x.yaml:2: sharding_config.a.replicas: there are 6 workers, which 4 does not divide; allowed: 1, 2, 3, 6",
        ),
        (
            rules("a: {strategy: data_parallel}", "b: {strategy: tensor_parallel}"),
            4,
            f"x.yaml:2: mesh: nothing says how large the mesh axes data and model are; {ASK}",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 3}", "b: {strategy: data_parallel, batch_split: 2}"),
            4,
            f"x.yaml:3: mesh: the mesh axis data would have size 2, by the rules before it 3; {ASK}",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 4}", "b: {strategy: tensor_parallel, replicas: 2}"),
            4,
            "x.yaml:2: mesh: {data: 4, model: 2} takes 8 workers, there are 4 workers; allowed: a mesh that takes at most 4",
        ),
        (
            rules("a: {strategy: data_parallel, batch_split: 3}", "b: {strategy: tensor_parallel, replicas: 4}"),
            8,
            f"x.yaml:3: mesh: replicas is 4, but {{data: 3, model: 2}} holds 3 copies; {ASK}",
        ),
        (
            EXPLICIT,
            3,
            "x.yaml:2: sharding_config.a.shard.workers[1]: there is no worker 3, there are 3 workers; allowed: 0 to 2",
        ),
        (
            "mesh: {data: 2}\n" + EXPLICIT,
            4,
            "x.yaml:3: sharding_config.a.shard.workers[1]: there is no worker 3, the mesh is {data: 2}; allowed: 0 to 1",
        ),
        (
            rules("a: {" + PIPE + "}"),
            3,
            "x.yaml:2: sharding_config.a.stages: 2 stages of 2 take 4 workers, there are 3 workers;"
            " allowed: stages that take at most 3",
        ),
        (
            rules("a: {strategy: pipeline_parallel, stages: [[0], [4]]}"),
            4,
            "x.yaml:2: sharding_config.a.stages[1][0]: there is no worker 4, the mesh is {stages: 2}; allowed: 0 to 1",
        ),
        (
            rules("a: {strategy: pipeline_parallel, stages: [[0, 2], [1, 3]]}"),
            4,
            "x.yaml:2: sharding_config.a.stages[0]: [0, 2] are not the workers at one position of the axis stages of"
            " {stages: 2, data: 2}; allowed: [0, 1], [2, 3], in any order",
        ),
        (
            "mesh: {data: 2, stages: 2}\n" + rules("a: {" + PIPE + "}"),
            4,
            "x.yaml:3: sharding_config.a.stages[0]: [0, 1] are not the workers at one position of the axis stages of"
            " {data: 2, stages: 2}; allowed: [0, 2], [1, 3], in any order",
        ),
        (
            rules("a: {" + PIPE + "}", "b: {strategy: pipeline_parallel, stages: [[0], [1]]}"),
            4,
            "x.yaml:3: mesh: its stages have other numbers of workers than those of sharding_config.a; " + ASK,
        ),
        (
            rules("a: {strategy: pipeline_parallel, stages: [[0, 1, 2], [3, 4, 5]]}",
                  "b: {strategy: data_parallel, batch_split: 2}"),
            6,
            "x.yaml:2: mesh: each of 2 stages has 3 workers, but the rules make {stages: 2, data: 2}; " + ASK,
        ),
    ],
)  # fmt: skip
def test_a_mesh_that_does_not_fit_is_refused(text: str, workers: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml").mesh_for(workers)
    assert str(caught.value) == message


def test_an_elastic_mesh_needs_as_few_workers_as_its_other_axes() -> None:
    """By default as many are started; its size crosses the wire, and overlays as any other."""
    config = parse("mesh: {data: auto, model: 2}")
    assert (config.is_elastic, config.least_mesh, config.workers_needed()) == (True, 2, 2)
    assert Config.from_wire(config.to_wire()).mesh == {"data": "auto", "model": 2}
    assert parse("mesh: {data: 2}").overlay(config).is_elastic
    assert not config.overlay(parse("mesh: {data: 2}")).is_elastic


def test_a_mesh_needs_workers() -> None:
    with pytest.raises(ValueError, match="at least one worker, not 0"):
        Config().mesh_for(0)


RULES = st.one_of(
    st.builds(dict, strategy=st.sampled_from(["replicate", "auto", "fully_sharded", "sequence_parallel"])),
    st.builds(
        lambda stages, width, order: {
            "strategy": "pipeline_parallel",
            "stages": [[at * width + i for i in range(width)] for at in order if at < stages] or [[0]],
        },
        st.integers(1, 3), st.integers(1, 3), st.permutations(range(3)),
    ),
    st.fixed_dictionaries({"strategy": st.just("data_parallel")}, optional={"batch_split": st.integers(1, 6)}),
    st.fixed_dictionaries({"strategy": st.just("tensor_parallel")}, optional={"replicas": st.integers(1, 6)}),
    st.builds(
        lambda workers: {"shard": {"axis": 0, "workers": workers}}, st.lists(st.integers(0, 5), min_size=1, unique=True)
    ),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from("abcd"), RULES), st.integers(1, 12))
def test_a_mesh_never_takes_more_workers_than_there_are(plain: dict[str, object], workers: int) -> None:
    config = Config.from_plain({"sharding_config": plain})
    try:
        mesh = config.mesh_for(workers)
    except ConfigError:
        return
    size = 1
    for length in mesh.values():
        size *= length
    assert 1 <= size <= workers
    for _, rule in config.each():
        assert rule.axis is None or rule.axis in mesh
        assert rule.replicas is None or mesh["model"] * rule.replicas == size
        assert rule.batch_split in (None, mesh.get("data"))
        assert rule.shard is None or max(rule.shard.workers) < size
        assert rule.stages is None or next(iter(mesh)) == "stages"
    assert Config.from_wire(config.to_wire()) == config


TENSOR, DATA = "a: {strategy: tensor_parallel}", "b: {strategy: data_parallel}"


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("mesh: {model: 2, data: 2}\n" + rules(TENSOR, DATA), ["data", "model"]),
        ("mesh: {data: 2, model: 2}\n" + rules(TENSOR, DATA), ["data", "model"]),
        ("mesh: {model: 2, x: 2, data: 2}\n" + rules(TENSOR, DATA), ["x", "data", "model"]),
        ("mesh: {x: 2, y: 2}\n" + rules("a: {compile: true}"), ["x", "y"]),
        ("mesh: {data: 2, x: 2}\n" + rules("a: {strategy: fully_sharded}", "b: {strategy: data_parallel, mesh_axis: x}"), ["x", "data"]),
        ("mesh: {data: 2, expert: 2}\n" + rules("a: {strategy: expert_parallel}", "b: {strategy: fully_sharded}"), ["data", "expert"]),
        ("mesh: {x: 2, y: 2}\n" + rules("a: [{strategy: data_parallel, mesh_axis: y}, {strategy: sequence_parallel, mesh_axis: x}]"), ["y", "x"]),
        ("mesh: {model: 2, data: 2}\n" + rules("a: {strategy: data_parallel, mesh_axis: model}", "b: {strategy: tensor_parallel, mesh_axis: model}", "c: {strategy: fully_sharded}"), ["data", "model"]),
        ("mesh: {model: 2, data: 2}\n" + rules(TENSOR, "c: {shard: {axis: 0, workers: [0, 1]}}"), None),
        ("mesh: {model: 2, stages: 2}\n" + rules(TENSOR, "c: {strategy: pipeline_parallel, stages: [[0, 2], [1, 3]]}"), None),
        ("mesh: {model: 2, data: 2}\n" + rules(TENSOR, "c: {strategy: auto}"), None),
    ],
)  # fmt: skip
def test_the_busiest_axis_follows_from_the_strategies(text: str, order: list[str] | None) -> None:
    """Whatever the order in the file; where rules name workers or the strategy is unknown, axes stay as written."""
    config = parse(text)
    mesh = config.mesh_for(8)
    found = finish(busiest_last(config, mesh))
    assert (None if found is None else [list(mesh)[axis] for axis in found]) == order
