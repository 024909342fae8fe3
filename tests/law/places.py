"""Where programs run, as data, and how that is drawn: workers, alike or not, and a config that uses all there is in one.

What is drawn is meant to be valid for the number of workers that is drawn with it; what is not is refused with a
`ConfigError`, and whoever runs it holds it to that. `wild` draws what is valid word by word and seldom as a whole.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final, NamedTuple

import yaml

from gt.dispatcher.planner.policy import resolve
from gt.errors import ConfigError
from gt.sharding.config import Config, parse
from gt.sharding.placement import uniform_mesh

from .programs import SIGNALS, Draws

Plain = dict[str, Any]

FILE: Final = "law.yaml"
"""What the config of a place is called in errors."""
OWN: Final = {
    "data_parallel": "data", "tensor_parallel": "model", "fully_sharded": "data", "sequence_parallel": "model",
    "pipeline_parallel": "stages", "expert_parallel": "expert",
}  # fmt: skip
"""The mesh axis of each strategy."""
STRATEGIES: Final = (
    "data_parallel", "tensor_parallel", "shard", "fully_sharded", "data_parallel", "tensor_parallel", "shard",
    "sequence_parallel", "expert_parallel", "replicate", "auto", "hint",
)  # fmt: skip
PATTERNS: Final = ("*", "a*", "b/*", "[ab]", "?", "c/*")


class Place(NamedTuple):
    """Where a program runs.

    `codec`: every message goes through its bytes. `speeds`: how fast each worker says it is, all alike when empty.
    `reload`: from the second repetition on, this config holds in place of the first.
    """

    workers: int
    config: Plain | None
    codec: bool = False
    speeds: tuple[int, ...] = ()
    reload: Plain | None = None

    def __str__(self) -> str:
        lines = [f"workers={self.workers}{', through bytes' if self.codec else ''}"]
        if self.speeds:
            lines.append(f"speeds={self.speeds}")
        lines.append(text_of(self.config))
        if self.reload is not None:
            lines += ["from the second repetition on:", text_of(self.reload)]
        return "\n".join(lines)

    @property
    def deterministic(self) -> int:
        """Into how many blocks everything is computed; 0 when it need not be the same to the bit."""
        found = self.config or {}
        return int(found.get("blocks", 8)) if found.get("deterministic") else 0


def text_of(config: Plain | None) -> str:
    """The file of a config."""
    return "" if config is None else yaml.safe_dump(config, sort_keys=False, default_flow_style=None, width=200)


def read(config: Plain | None) -> Config | None:
    """The config as a file of it is read."""
    return None if config is None else parse(text_of(config), FILE)


def _pick(draws: Draws, options: Any) -> Any:
    return options[draws.below(len(options))]


def draw_place(draws: Draws) -> Place:
    """Workers and a config for them."""
    workers = _pick(draws, (2, 4, 3, 8, 6, 4, 5, 2, 7, 1))
    config = _config(draws, workers)
    codec = draws.below(6) == 5
    speeds: tuple[int, ...] = ()
    if draws.below(4) == 3:
        speeds = tuple(_pick(draws, (4, 1, 2, 3, 7)) for _ in range(workers))
    reload = None  # until a session can be given another config
    return Place(workers, config, codec, speeds, reload)


def exact_place(draws: Draws) -> Place:
    """Workers, and a config under which values are to be the same bits as on one."""
    place = draw_place(draws)
    config = {**(place.config or {}), "deterministic": True}
    for rules in config.get("sharding_config", {}).values():
        for rule in rules if isinstance(rules, list) else [rules]:
            rule.pop("microbatches", None)  # what is added up apart is refused
    if draws.below(3) == 2:
        config["blocks"] = _pick(draws, (16, 8, 32))
    return place._replace(config=config, reload=None)


def _config(draws: Draws, workers: int) -> Plain:
    mesh = _mesh(draws, workers)
    names = [name for name in SIGNALS[:-1] if draws.below(6) != 5]
    names += [_pick(draws, PATTERNS)] if draws.below(4) == 3 else []
    if not names:
        return {"mesh": mesh}
    pipeline = _pipeline(draws, mesh) if "stages" in mesh or draws.below(12) == 11 else None
    rules = {name: _rules(draws, mesh, pipeline) for name in dict.fromkeys(names)}
    for rule in rules.values():
        if draws.below(3) == 2:
            first = rule[0] if isinstance(rule, list) else rule
            first["backward"] = _pick(draws, tuple(rules))
    config: Plain = {"mesh": mesh, "sharding_config": rules}
    if draws.below(5) == 4 and _fits({"sharding_config": rules}, workers):
        del config["mesh"]
    return config


def _fits(config: Plain, workers: int) -> bool:
    """Whether a config without a mesh of its own is valid."""
    try:
        known = Config.from_plain(config)
        axes = known.mesh_for(workers)
        resolve(known, uniform_mesh(1, axes, tuple(range(math.prod(axes.values())))))
    except ConfigError:
        return False
    return True


def _mesh(draws: Draws, workers: int) -> dict[str, int]:
    """One to three axes in any order, whose sizes multiply to the workers or to somewhat fewer."""
    names = ["data", "model", "stages", "x", "expert"]
    for at in range(len(names)):  # drawn nothing but zeros, they stay as they are
        other = at + draws.below(len(names) - at)
        names[at], names[other] = names[other], names[at]
    count = _pick(draws, (1, 2, 2, 3))
    sizes = sorted(
        (sizes for sizes in itertools.product(range(1, workers + 1), repeat=count) if math.prod(sizes) <= workers),
        key=lambda sizes: (-math.prod(sizes), -min(sizes)),
    )
    likely = sizes[: 3 * count] if draws.below(5) != 4 else sizes
    return dict(zip(names, _pick(draws, likely), strict=False))


def _pipeline(draws: Draws, mesh: dict[str, int]) -> Plain:
    """The pipeline of a config: all rules for one say the same of its axis, microbatches and schedule."""
    axis = "stages" if "stages" in mesh else _pick(draws, tuple(mesh))
    inner = math.prod(list(mesh.values())[list(mesh).index(axis) + 1 :])
    stages: list[list[int]] = [[] for _ in range(mesh[axis])]
    for rank in range(math.prod(mesh.values())):
        stages[rank // inner % mesh[axis]].append(rank)
    if draws.below(3) == 2:
        stages.reverse()
    if len(stages) > 2 and draws.below(3) == 2:
        stages.pop(draws.below(len(stages)))
    rule: Plain = {"strategy": "pipeline_parallel", "stages": stages}
    microbatches = _pick(draws, (None, 2, 4, 3, 1, 2))
    if microbatches:
        rule["microbatches"] = microbatches
    schedule = _pick(draws, (None, "gpipe", "1f1b"))
    if schedule:
        rule["schedule"] = schedule
    if axis != "stages":
        rule["mesh_axis"] = axis
    return rule


def _rules(draws: Draws, mesh: dict[str, int], pipeline: Plain | None) -> Plain | list[Plain]:
    """What one signal is given: a rule, or several that speak of different axes."""
    if pipeline and draws.below(2):
        first = {**pipeline, "stages": [list(stage) for stage in pipeline["stages"]]}
    else:
        first = _rule(draws, mesh)
    if len(mesh) == 1 or _axis(first) is None or draws.below(3) != 2:
        return first
    found, spoken = [first], {_axis(first)}
    for axis in mesh:
        strategy = next((name for name, own in OWN.items() if own == axis and name != "pipeline_parallel"), None)
        if axis not in spoken and draws.below(2):
            found.append({"strategy": strategy} if strategy else {"strategy": "tensor_parallel", "mesh_axis": axis})
    return found if len(found) > 1 else first


def _axis(rule: Plain) -> str | None:
    return rule.get("mesh_axis") or OWN.get(rule.get("strategy", ""))


def _rule(draws: Draws, mesh: dict[str, int]) -> Plain:
    form = _pick(draws, STRATEGIES)
    if form == "hint":
        return {"compile": True} if draws.below(2) else {"device": "cpu"}
    if form == "shard":
        return {"shard": {"axis": _pick(draws, (0, 1, 2)), "workers": _block(draws, mesh)}}
    rule: Plain = {"strategy": form}
    if form in ("replicate", "auto"):
        if draws.below(2):
            rule["mesh_axis"] = _pick(draws, tuple(mesh))
        return rule
    own = OWN[form]
    axis = own if own in mesh and draws.below(3) else _pick(draws, tuple(mesh))
    if axis != own:
        rule["mesh_axis"] = axis
    if form == "data_parallel" and draws.below(2):
        rule["batch_split"] = mesh[axis]
    if form in ("tensor_parallel", "sequence_parallel"):
        dimension = _pick(draws, (0, 1, None, 2))
        if dimension is not None:
            rule["dimension"] = dimension
    if form == "tensor_parallel" and draws.below(2):
        rule["replicas"] = math.prod(mesh.values()) // mesh[axis]
    if draws.below(8) == 7:
        rule["device"] = "cpu"
    return rule


def _block(draws: Draws, mesh: dict[str, int]) -> list[int]:
    """Some positions on each axis, and all their combinations."""
    chosen = []
    for size in mesh.values():
        positions = [at for at in range(size) if draws.below(3) != 2]
        chosen.append(positions or [draws.below(size)])
    sizes = list(mesh.values())
    ranks = []
    for coordinates in itertools.product(*chosen):
        rank = 0
        for size, at in zip(sizes, coordinates, strict=True):
            rank = rank * size + at
        ranks.append(rank)
    return ranks[::-1] if draws.below(2) else ranks


# what is valid word by word


def wild(draws: Draws) -> Place:
    """A config in which keys, axes, workers and sizes seldom agree, for any number of workers."""
    workers = 1 + draws.below(8)
    names = ("a", "b", "c", "a/b", "a*")
    rules: dict[str, Any] = {}
    for name in names[: 1 + draws.below(3)]:
        several = [_wild_rule(draws, names) for _ in range(_pick(draws, (1, 1, 1, 2, 3)))]
        rules[name] = several if len(several) > 1 else several[0]
    config: Plain = {"sharding_config": rules}
    if draws.below(3):
        axes = [_pick(draws, ("data", "model", "stages", "expert", "x"))]
        if draws.below(4):
            spoken = [rule for rule in rules.values() if isinstance(rule, dict)]
            axes = list(dict.fromkeys(axis for rule in spoken if (axis := _axis(rule)))) or axes
        config["mesh"] = {axis: _pick(draws, (2, 1, 3, 4)) for axis in axes}
    if draws.below(6) == 5:
        config["deterministic"] = _pick(draws, (True, False))
    if draws.below(8) == 7:
        config["blocks"] = _pick(draws, (8, 4, 3, 1))
    return Place(workers, config)


def _wild_rule(draws: Draws, names: tuple[str, ...]) -> Plain:
    options: dict[str, Any] = {
        "strategy": (*OWN, "replicate", "auto"),
        "shard": None,
        "stages": None,
        "batch_split": (2, 1, 3, 4),
        "dimension": (0, 1, 2, 5),
        "replicas": (1, 2, 3),
        "microbatches": (2, 1, 3, 8),
        "schedule": ("gpipe", "1f1b"),
        "mesh_axis": ("data", "model", "x"),
        "backward": names,
        "compile": (True, False),
        "device": ("cpu", "cuda"),
    }
    likely = {"strategy": 11, "shard": 2, "backward": 2, "mesh_axis": 2}
    rule: Plain = {}
    for name, values in options.items():
        if draws.below(12) >= likely.get(name, 1):
            continue
        if name == "shard":
            rule[name] = {
                "axis": draws.below(4),
                "workers": sorted({draws.below(6) for _ in range(1 + draws.below(4))}),
            }
        elif name == "stages":
            width = 1 + draws.below(2)
            rule[name] = [[draws.below(6) for _ in range(width)] for _ in range(1 + draws.below(3))]
        else:
            rule[name] = _pick(draws, values)
    strategy = rule.get("strategy")
    if strategy == "pipeline_parallel" and "stages" not in rule and draws.below(8):
        width = 1 + draws.below(2)
        rule["stages"] = [list(range(n * width, n * width + width)) for n in range(1 + draws.below(3))]
    if draws.below(4):  # mostly, only what the strategy takes
        takes = {
            "data_parallel": ("batch_split",), "tensor_parallel": ("dimension", "replicas"),
            "sequence_parallel": ("dimension",), "pipeline_parallel": ("stages", "microbatches", "schedule"),
        }.get(str(strategy), ())  # fmt: skip
        common = ("strategy", "mesh_axis", "backward", "compile", "device", *(("shard",) if not strategy else ()))
        rule = {key: value for key, value in rule.items() if key in (*common, *takes)}
    return rule or {"compile": True}
