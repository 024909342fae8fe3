"""How little of a wrong config is looked at, and that the mistakes that are told are the same."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from config_samples import GOOD

from gt.bounds import MAX_NAMED_WORKERS, MAX_RULES
from gt.errors import ConfigError
from gt.sharding.config import Config, parse
from gt.sharding.config_turns import (
    MAX_SOUGHT_MISTAKES,
    WORK_PER_TURN,
    batches,
    plain_in_turns,
    rules_in_turns,
    shortened,
)
from gt.sharding.strategies import ALLOWED_TEXTS, keys_at
from gt.turns import finish

MANY = 10 * MAX_NAMED_WORKERS


def refusal(rule: Any) -> list[str]:
    """The lines with which a rule is refused."""
    with pytest.raises(ConfigError) as caught:
        Config.from_plain({"sharding_config": {"a": rule}}, "x")
    return str(caught.value).splitlines()


def values_in(given: Any) -> int:
    """How many values there are in a value."""
    if isinstance(given, dict):
        return sum(map(values_in, given.values())) + 1
    return sum(map(values_in, given)) + 1 if isinstance(given, list) else 1


@pytest.mark.parametrize(
    ("rule", "key", "text"),
    [
        ([3] * MANY, "", "has more than 8 entries"),
        ({f"k{number}": 1 for number in range(MANY)}, ".k0", "unknown key"),
        ({"shard": {"axis": 0, "workers": ["x"] * MANY}}, ".shard.workers", "has more than 4096 entries"),
        ({"shard": {"axis": 0, "workers": ["x"] * 4000}}, ".shard.workers[0]", "'x' is not an integer"),
        ({"shard": {"axis": 0, "workers": [0] * 900 + [-1] * 900}}, ".shard.workers[900]", "-1 is too small"),
        ({"shard": {f"k{number}": 1 for number in range(MANY)}}, ".shard.axis", "is missing"),
        ({"stages": [3] * MANY}, ".stages", "has more than 4096 entries"),
        ({"stages": [[*range(3000)]] * 20}, ".stages", "has more than 4096 entries"),
        ({"stages": [[0], ["x"] * 4000]}, ".stages[1][0]", "'x' is not an integer"),
        ({"stages": [3] * 4000}, ".stages[0]", "3 is not a list"),
    ],
)
def test_of_what_is_wrong_everywhere_little_is_looked_at(rule: Any, key: str, text: str) -> None:
    assert values_in(shortened(rule)) < min(values_in(rule), MAX_NAMED_WORKERS + 6)
    assert refusal(rule)[0].startswith(f"x: sharding_config.a{key}: {text}")


@pytest.mark.parametrize(
    "rule",
    [
        {"strategy": "replicate"},
        [{"strategy": "fully_sharded"}, {"strategy": "tensor_parallel"}],
        {"shard": {"axis": 0, "workers": [*range(MAX_NAMED_WORKERS)]}},
        {"strategy": "pipeline_parallel", "stages": [[number] for number in range(MAX_NAMED_WORKERS)]},
        {"strategy": "pipeline_parallel", "stages": [[*range(0, 4096, 2)], [*range(1, 4096, 2)]]},
    ],
)
def test_what_is_sound_is_looked_at_as_it_is(rule: Any) -> None:
    assert shortened(rule) is rule
    config = Config.from_plain({"sharding_config": {"a": rule}})
    assert config.to_plain()["sharding_config"]["a"] == rule


def test_numbers_of_another_type_are_not_lost() -> None:
    """What only looked wrong is read in full."""

    class Rank(int):
        pass

    workers = [Rank(number) for number in range(100)]
    config = Config.from_plain({"sharding_config": {"a": {"shard": {"axis": 0, "workers": workers}}}})
    rule = config.rules["a"][0]
    assert rule.shard is not None
    assert rule.shard.workers == tuple(range(100))


def test_mistakes_are_told_in_the_order_of_the_keys_whichever_slice_finds_them() -> None:
    """Those of the mesh come first, as many of the rules as are looked for, and others only if there is room."""
    few = {f"s{number}": {"strategy": 7} for number in range(3)}
    many = {f"s{number}": {"strategy": 7} for number in range(MAX_RULES)}
    for rules, last in ((few, "oops: unknown key"), (many, f"and {MAX_SOUGHT_MISTAKES - 10} more")):
        with pytest.raises(ConfigError) as caught:
            Config.from_plain({"oops": 1, "sharding_config": rules, "mesh": {"data": 0}}, "x")
        lines = str(caught.value).splitlines()
        assert lines[0].startswith("x: mesh.data: 0 is too small")
        assert lines[1].startswith("x: sharding_config.s0.strategy: 7 is not a strategy")
        assert last in lines[-1]


def test_too_many_rules_are_refused_if_each_is_right() -> None:
    rules: dict[str, Any] = {f"s{number}": {"strategy": "auto"} for number in range(MAX_RULES + 1)}
    for wrong, said in ((None, "sharding_config: has more than 1024 entries"), ("s1024", "s1024: 3 is not a mapping")):
        plain = {"sharding_config": rules | ({wrong: 3} if wrong else {})}
        with pytest.raises(ConfigError, match=said):
            Config.from_plain(plain)


def test_configs_that_are_too_many_rules_together_are_not_merged() -> None:
    one = Config.from_plain({"sharding_config": {f"s{number}": {"strategy": "auto"} for number in range(MAX_RULES)}})
    assert one.overlay(Config.from_plain({"sharding_config": {"s0": {"compile": True}}})).rules["s0"][0].compile
    with pytest.raises(ConfigError, match="<config>: sharding_config: has more than 1024 entries"):
        one.overlay(Config.from_plain({"sharding_config": {"other": {"compile": True}}}))


def test_a_turn_has_so_many_rules_and_fewer_if_they_name_workers() -> None:
    rules: dict[str, Any] = {f"s{number}": {"strategy": "auto"} for number in range(300)}
    config = Config.from_plain({"sharding_config": rules})
    assert [len(batch) for batch in rules_in_turns(config.each())] == [64, 64, 64, 64, 44]
    assert [len(batch) for batch, _ in plain_in_turns(rules)] == [64, 64, 64, 64, 44]
    named = {f"s{number}": {"shard": {"axis": 0, "workers": [*range(200)]}} for number in range(9)}
    config = Config.from_plain({"sharding_config": named})
    assert [len(batch) for batch in rules_in_turns(config.each())] == [3, 3, 3]
    assert [len(batch) for batch in rules_in_turns(config.each(), WORK_PER_TURN * 8)] == [1] * 9
    assert [len(batch) for batch, _ in plain_in_turns(named)] == [3, 3, 3]


def test_all_turns_at_once_give_the_result() -> None:
    plain = parse(GOOD).to_plain()
    turns = [*islice(Config.from_plain_in_turns(plain), 1000)]
    assert 2 < len(turns) < 100
    assert finish(Config.from_plain_in_turns(plain)) == Config.from_plain(plain)
    assert [*batches(range(5), 2)] == [[0, 1], [2, 3], [4]]


def test_the_keys_of_each_mapping_are_those_of_the_table() -> None:
    known = {*keys_at(""), *keys_at("sharding_config.*"), *keys_at("sharding_config.*.shard")}
    assert known == {name.rpartition(".")[2] for name in ALLOWED_TEXTS if name and not name.endswith(("*", "]"))}
