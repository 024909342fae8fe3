"""The sharding config: what is read from text and files, from the wire and from Python, and what editors are told."""

import json
from pathlib import Path

import msgpack
import pytest
from config_samples import GOOD, PIPE, RULE_KEYS, TOP, refusal, rules
from pydantic import ValidationError

from gt.errors import ConfigError, GTError
from gt.sharding.config import Config, ExplicitShard, Rule, load, parse
from gt.sharding.strategies import ALLOWED_TEXTS, HINT_KEYS, STRATEGIES

# Reading


def test_a_config_says_what_its_file_says() -> None:
    config = parse(GOOD, "configs/x.yaml")
    assert config.mesh == {"data": 2, "model": 2}
    assert list(config.rules) == ["layer1", "layer2", "head", "ffn", "ffn_backward"]
    assert config.rules["layer1"][0].strategy == "tensor_parallel"
    assert config.rules["layer1"][0].dimension == 0
    assert config.rules["layer1"][0].replicas == 2
    assert config.rules["layer2"][0].batch_split == 2
    assert config.rules["head"][0].compile is True
    assert config.rules["ffn"][0].shard == ExplicitShard(axis=1, workers=(0, 1))
    assert config.rules["ffn"][0].backward == "ffn_backward"
    assert config.rules["ffn_backward"][0].shard == ExplicitShard(axis=0, workers=(1, 0))


def test_each_rule_knows_the_line_of_its_key() -> None:
    config = parse(GOOD, "configs/x.yaml")
    assert config.mesh_where == "configs/x.yaml:1"
    assert [rule.where for _, rule in config.each()] == [f"configs/x.yaml:{line}" for line in (3, 4, 5, 8, 11)]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "mesh:\nsharding_config:\n", "{}"])
def test_a_file_that_says_nothing_is_the_empty_config(text: str) -> None:
    assert parse(text).to_plain() == Config().to_plain()
    assert parse(text).rules == Config().rules == {}
    assert parse(text).mesh is Config().mesh is None


def test_a_rule_may_be_only_hints() -> None:
    rule = parse(rules("a: {compile: false}")).rules["a"][0]
    assert (rule.strategy, rule.shard, rule.compile, rule.axis) == (None, None, False, None)


def test_an_alias_repeats_a_rule_and_each_has_its_own_line() -> None:
    config = parse(rules("a: &tp {strategy: tensor_parallel}", "b: *tp"), "x.yaml")
    assert config.rules["a"][0].strategy == config.rules["b"][0].strategy == "tensor_parallel"
    assert [rule.where for _, rule in config.each()] == ["x.yaml:2", "x.yaml:3"]


@pytest.mark.parametrize(
    ("line", "axis"),
    [
        ("a: {strategy: data_parallel}", "data"),
        ("a: {strategy: tensor_parallel}", "model"),
        ("a: {strategy: tensor_parallel, mesh_axis: data}", "data"),
        ("a: {strategy: replicate}", None),
        ("a: {shard: {axis: 0, workers: [0]}}", None),
    ],
)
def test_the_axis_of_a_rule_is_its_own_or_its_strategys(line: str, axis: str | None) -> None:
    assert parse(rules(line)).rules["a"][0].axis == axis


def test_a_config_cannot_be_changed() -> None:
    config = parse(GOOD)
    with pytest.raises(ValidationError, match="frozen"):
        config.mesh = None  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.rules["layer1"][0].dimension = 1  # type: ignore[misc]


def test_plain_values_read_like_the_yaml() -> None:
    config = Config.from_plain({"sharding_config": {"a": {"strategy": "data_parallel"}}})
    assert config.to_plain() == parse(rules("a: {strategy: data_parallel}")).to_plain()
    assert config.rules["a"][0].where == "<config>"
    with pytest.raises(ConfigError, match=r"^call: sharding_config\.a: 3 is not a mapping; allowed: "):
        Config.from_plain({"sharding_config": {"a": 3}}, "call")


# Files


def test_load_reads_a_file_also_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(path).to_plain() == parse(GOOD).to_plain()
    assert load(str(path)).rules["layer1"][0].where == f"{path}:3"


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    for path, problem in [(tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")]:
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value) == f"{path}: cannot be read: {problem}; allowed: a YAML file"


def test_a_file_that_is_not_text_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for data, message in [
        (b"mesh:\n  data: \xff", f"{path}:2: not text in UTF-8; allowed: a YAML file"),
        (b"\xff" * (2**20 + 1), f"{path}: larger than 1048576 bytes; allowed: a YAML file up to that size"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value) == message


# Between client and service


def test_a_config_crosses_the_wire_with_its_places() -> None:
    config = parse(GOOD, "configs/x.yaml")
    arrived = Config.from_wire(msgpack.unpackb(msgpack.packb(config.to_wire())))
    assert arrived == config
    assert arrived.mesh_where == "configs/x.yaml:1"
    assert arrived.rules["ffn"][0].where == "configs/x.yaml:8"
    assert Config.from_wire(Config().to_wire()) == Config()


def test_several_rules_of_a_signal_cross_the_wire_each_with_its_line() -> None:
    text = rules(
        "a:", "  - strategy: fully_sharded", "  - {strategy: tensor_parallel, dimension: 1}", "b: {device: cpu}"
    )
    config = parse("deterministic: true\nblocks: 4\n" + text, "x.yaml")
    arrived = Config.from_wire(msgpack.unpackb(msgpack.packb(config.to_wire())))
    assert arrived == config
    assert [rule.where for _, rule in arrived.each()] == ["x.yaml:5", "x.yaml:6", "x.yaml:7"]
    assert arrived.block_count == 4
    over = arrived.overlay(parse(rules("b: [{strategy: auto}]"), "y.yaml"))
    assert [rule.where for _, rule in over.each()] == ["x.yaml:5", "x.yaml:6", "y.yaml:2"]
    assert over.block_count == 4
    assert over.overlay(parse("deterministic: false")).block_count == 0
    assert over.overlay(parse("deterministic: true")).block_count == 8


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {"config": {}},
        {"config": [], "mesh_where": "", "where": []},
        {"config": {}, "mesh_where": 1, "where": []},
        {"config": {}, "mesh_where": "", "where": {}},
        {"config": {}, "mesh_where": "", "where": [], "more": 1},
        {"config": {}, "mesh_where": "\n", "where": []},
        {"config": {}, "mesh_where": "x" * 5000, "where": []},
        {"config": {"sharding_config": {"a": {"compile": True}}}, "mesh_where": "", "where": []},
        {"config": {"sharding_config": {"a": {"compile": True}}}, "mesh_where": "", "where": [b"x:1"]},
        {"config": {"sharding_config": []}, "mesh_where": "", "where": []},
        {"config": {"sharding_config": {b"a": {"compile": True}}}, "mesh_where": "", "where": ["x:1"]},
        {"config": {"mesh": {1: 1}}, "mesh_where": "", "where": []},
        {"config": {"mesh": {"data": 1, "\n": 2}}, "mesh_where": "", "where": []},
        {"config": {7: 1}, "mesh_where": "", "where": []},
    ],
)
def test_what_to_wire_never_makes_is_refused(message: object) -> None:
    with pytest.raises(ConfigError, match="allowed: "):
        Config.from_wire(message)


def test_a_signal_without_rules_that_crossed_the_wire_is_refused_as_in_a_file() -> None:
    with pytest.raises(ConfigError, match=r"^<config>: sharding_config\.a: is empty; allowed: a mapping with strategy"):
        Config.from_wire({"config": {"sharding_config": {"a": []}}, "mesh_where": "x:1", "where": [[]]})


def test_a_mistake_that_crossed_the_wire_still_names_the_file() -> None:
    message = parse(GOOD, "configs/x.yaml").to_wire()
    message["config"]["sharding_config"]["layer1"]["dimension"] = "zero"
    with pytest.raises(ConfigError, match=r"^configs/x\.yaml:3: sharding_config\.layer1\.dimension: 'zero' is not an"):
        Config.from_wire(message)


def test_the_clients_file_overrides_the_services_signal_by_signal() -> None:
    service = parse(
        "mesh: {data: 4}\n" + rules("a: {strategy: data_parallel}", "b: {strategy: replicate}"), "service.yaml"
    )
    client = parse(rules("b: {strategy: data_parallel}", "c: {compile: true}"), "client.yaml")
    both = service.overlay(client)
    assert {signal: (rule.strategy, rule.where) for signal, (rule,) in both.rules.items()} == {
        "a": ("data_parallel", "service.yaml:3"),
        "b": ("data_parallel", "client.yaml:2"),
        "c": (None, "client.yaml:3"),
    }
    assert (both.mesh, both.mesh_where) == ({"data": 4}, "service.yaml:1")
    assert service.overlay(Config()) == service
    assert Config().overlay(client).to_plain() == client.to_plain()


def test_the_clients_mesh_wins_and_contradictions_are_refused() -> None:
    service = parse("mesh: {data: 4}\n" + rules("a: {strategy: data_parallel, batch_split: 4}"), "service.yaml")
    assert service.overlay(parse("mesh: {data: 4, model: 2}")).mesh == {"data": 4, "model": 2}
    with pytest.raises(ConfigError, match=r"^service\.yaml:3: sharding_config\.a\.batch_split: 4 contradicts the mesh"):
        service.overlay(parse("mesh: {data: 2}", "client.yaml"))


def test_a_near_miss_of_a_signal_is_found() -> None:
    config = parse(GOOD)
    assert config.near_miss("layer_1") == "layer1"
    assert config.near_miss("layer1") is None
    assert config.near_miss("something") is None
    assert Config().near_miss("layer1") is None


def test_a_signal_that_a_pattern_is_for_is_no_slip() -> None:
    config = parse(rules("blocks.*: {compile: true}", "block.s: {compile: true}"))
    assert config.near_miss("blocks.3") is None
    assert config.near_miss("blocks3") == "block.s"


def test_names_that_are_alike_on_purpose_are_no_slip() -> None:
    """Layers are numbered, and modules of one model share the beginnings of their names."""
    config = parse(rules("layer1: {compile: true}", "blocks.0.attn: {compile: true}", "hidden.out: {compile: true}"))
    for signal in ("layer2", "blocks.1.attn", "blocks.0.norm", "blocks.0", "blocks.0.attn.proj", "hidden"):
        assert config.near_miss(signal) is None
    assert config.near_miss("layerr2") == "layer1"
    assert config.near_miss("hiden.out") == "hidden.out"


# The length of plans


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("20ms", 0.02), ("20 ms", 0.02), ("1.5s", 1.5), ("2min", 120.0), ("500us", 5e-4), ("3", 3.0), ("0.5", 0.5)],
)
def test_a_plan_s_time_is_seconds_or_a_text_with_a_unit(given: str, seconds: float) -> None:
    """For all signals or one; what crosses the wire is a number."""
    config = parse(f"max_plan: {given}\n" + rules(f"net: {{max_plan: {given}}}"))
    assert config.max_plan == config.rules["net"][0].max_plan == pytest.approx(seconds)
    assert Config.from_wire(config.to_wire()) == config
    assert Config().overlay(config).max_plan == config.max_plan


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("fast", "'fast' is not a time"), ("20 parsecs", "'20 parsecs' is not a time"), ("-1", "-1 is too small"),
        ("0", "0 is too small"),
        (".inf", "inf is not a finite number"), (".nan", "nan is not a finite number"), ("2h", "'2h' is not a time"),
        ("90min", "5400.0 is too large"), ("true", "True is not a number"), ("[1]", "a list is not a number"),
        ("1e-9", "'1e-9' is not a time"),
    ],
)  # fmt: skip
def test_any_other_time_is_refused_in_one_sentence(given: str, says: str) -> None:
    allowed = "a number of seconds, or a text such as 20ms, from 1us to 60min"
    assert refusal(f"max_plan: {given}").lower() == f"x.yaml:1: max_plan: {says}; allowed: {allowed}".lower()
    where = "x.yaml:2: sharding_config.net.max_plan"
    assert refusal(rules(f"net: {{max_plan: {given}}}")).lower() == f"{where}: {says}; allowed: {allowed}".lower()


def test_a_pipeline_takes_no_such_time() -> None:
    text = refusal(rules(f"net: {{{PIPE}, max_plan: 1s}}"))
    assert "max_plan: given beside the strategy pipeline_parallel, whose plans are not cut" in text
    assert text.endswith("allowed: either max_plan or pipeline_parallel")


# For editors


def test_the_json_schema_says_what_is_allowed() -> None:
    schema = Config.json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert list(schema["properties"]) == TOP.split(", ")
    rule = schema["$defs"]["Rule"]
    assert list(rule["properties"]) == RULE_KEYS.split(", ") == list(Rule.model_fields)
    assert rule["properties"]["strategy"]["enum"] == list(STRATEGIES)
    assert rule["properties"]["dimension"]["type"] == "integer"
    assert rule["additionalProperties"] is schema["additionalProperties"] is False
    assert "null" not in json.dumps(schema)
    (either,) = schema["properties"]["mesh"]["patternProperties"].values()
    sizes = either["oneOf"]
    assert [size.get("const", size.get("type")) for size in sizes] == ["integer", "auto"]


def test_every_option_belongs_to_a_strategy_or_to_all_rules() -> None:
    options = [option for strategy in STRATEGIES.values() for option in strategy.options]
    assert {"strategy", "shard", *options, *HINT_KEYS} == set(Rule.model_fields)
    assert not {*options} & {*HINT_KEYS}


def test_all_that_can_be_given_says_what_is_allowed() -> None:
    """Every key of the schema has its line in the table that errors quote."""
    keys = {f"sharding_config.*.{name}" for name in Rule.model_fields}
    keys |= {f"sharding_config.*.shard.{name}" for name in ExplicitShard.model_fields}
    keys |= {field.alias or name for name, field in Config.model_fields.items()}
    assert keys <= set(ALLOWED_TEXTS)
    assert ALLOWED_TEXTS["sharding_config.*.strategy"].split(", ") == list(STRATEGIES)


def test_a_config_error_is_one_of_gts_and_a_value_error() -> None:
    assert issubclass(ConfigError, GTError)
    assert issubclass(ConfigError, ValueError)
