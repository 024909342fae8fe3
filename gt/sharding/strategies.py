"""The vocabulary of the sharding config: its strategies, the options of each, and what every key allows, in words.

Plain tables and no pydantic. `gt/sharding/config.py` gives the keys their types; a test compares the two.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gt.bounds import MAX_MICROBATCHES

from .device_names import ALLOWED_DEVICES
from .options import LARGEST_WEIGHT, LEAST_WEIGHT, PLAN_PRIORITIES, PRIORITIES
from .yaml_document import Key

MAX_NUMBER: Final = 2**31 - 1
MAX_BLOCKS: Final = 4096
AUTO_SIZE: Final = "auto"
"""The size of a mesh axis that is as large as the workers allow."""
MAX_AXES: Final = 8
"""The most axes of a mesh."""
MAX_SIGNAL_RULES: Final = 8
"""The most rules of one signal."""
DEFAULT_BLOCKS: Final = 8
"""The number of blocks of a deterministic session, if the config gives none."""


class Strategy(NamedTuple):
    """A strategy's default mesh axis and the options that it accepts."""

    axis: str | None
    options: tuple[str, ...] = ()


STRATEGIES: Final[dict[str, Strategy]] = {
    "data_parallel": Strategy("data", ("batch_split",)),
    "tensor_parallel": Strategy("model", ("dimension", "replicas")),
    "fully_sharded": Strategy("data"),
    "sequence_parallel": Strategy("model", ("dimension",)),
    "pipeline_parallel": Strategy("stages", ("stages", "microbatches", "schedule")),
    "expert_parallel": Strategy("expert"),
    "replicate": Strategy(None),
    "auto": Strategy(None),
}
HINT_KEYS: Final = ("mesh_axis", "backward", "compile", "device", "max_plan", "priority")
"""The keys that every rule takes."""

PLAN_TIME: Final = "a number of seconds, or a text such as 20ms, from 1us to 60min"

#: What a value may be, by key; `*` is any name, `[]` an item of a list.
ALLOWED_TEXTS: Final[dict[str, str]] = {
    "": "a mapping with the keys mesh, sharding_config, deterministic, blocks, priority, weight, max_plan",
    "mesh": "a mapping of axis names to sizes, such as {data: 2, model: 2}",
    "mesh.*": f"{AUTO_SIZE}, or an integer >= 1",
    "sharding_config": "a mapping of signals to rules",
    "sharding_config.*": "a mapping with strategy or shard, or a list of such mappings",
    "sharding_config.*.strategy": ", ".join(STRATEGIES),
    "sharding_config.*.batch_split": "an integer >= 1",
    "sharding_config.*.dimension": "an integer >= 0",
    "sharding_config.*.replicas": "an integer >= 1",
    "sharding_config.*.stages": "a list of lists of workers, all equally long, no worker twice",
    "sharding_config.*.stages[]": "a list of workers, all stages equally long",
    "sharding_config.*.stages[][]": "an integer >= 0",
    "sharding_config.*.microbatches": f"an integer from 1 to {MAX_MICROBATCHES}",
    "sharding_config.*.schedule": "gpipe, 1f1b",
    "sharding_config.*.shard": "a mapping with axis and workers",
    "sharding_config.*.shard.axis": "an integer >= 0",
    "sharding_config.*.shard.workers": "a list of distinct integers >= 0",
    "sharding_config.*.shard.workers[]": "an integer >= 0",
    "sharding_config.*.mesh_axis": "the name of a mesh axis",
    "sharding_config.*.backward": "the name of another rule",
    "sharding_config.*.compile": "true or false",
    "sharding_config.*.device": ALLOWED_DEVICES,
    "sharding_config.*.max_plan": PLAN_TIME,
    "sharding_config.*.priority": ", ".join(PLAN_PRIORITIES),
    "deterministic": "true or false",
    "blocks": f"a power of two up to {MAX_BLOCKS}",
    "priority": ", ".join(PRIORITIES),
    "weight": f"a number from {LEAST_WEIGHT:g} to {LARGEST_WEIGHT:g}",
    "max_plan": PLAN_TIME,
}


def rule_key(signal: str, rules: int, index: int) -> Key:
    """The key of rule `index` among the `rules` of a signal; a single rule is not written as a list."""
    return ("sharding_config", signal) if rules == 1 else ("sharding_config", signal, index)


def allowed_at(key: Key) -> str:
    """What the value at a key may be, in words; empty for a key that is unknown."""
    if len(key) > 2 and isinstance(key[2], int):
        key = (*key[:2], *key[3:])  # one of several rules for a signal
    name = ""
    for index, part in enumerate(key):
        name += "[]" if isinstance(part, int) else ".*" if index == 1 else f".{part}"
    return ALLOWED_TEXTS.get(name.removeprefix("."), "")


def keys_at(name: str) -> tuple[str, ...]:
    """The keys of the mapping at a name of `ALLOWED_TEXTS`."""
    below = [
        each.removeprefix(f"{name}.") for each in ALLOWED_TEXTS if each and each.startswith(f"{name}." if name else "")
    ]
    return tuple(key for key in below if not set(key) & set(".*["))
