"""The sharding config: the YAML file that says *where* what a program computes is computed.

`load` and `parse` read a file into a `Config`; whatever is wrong in it is refused with `ConfigError`, one line for each
mistake: file, line, key, what was given and what is allowed. A `Config` is frozen, crosses the wire (`to_wire`,
`from_wire`, where it is checked again) and turns a number of workers into named mesh axes (`mesh_for`).

Nothing here plans: what a rule means for an op is the dispatcher's. This is the one module that loads pydantic,
so nothing that `import gt` needs may import it while it is itself being imported.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema

from .document import Key, Places, read_document, read_text, show, show_key
from .errors import ConfigError

MAX_NUMBER: Final = 2**31 - 1
MAX_MISTAKES: Final = 10  # told at once


class Strategy(NamedTuple):
    """What a strategy is called with: its default mesh axis, and the options that it takes."""

    axis: str | None
    options: tuple[str, ...]


STRATEGIES: Final[dict[str, Strategy]] = {
    "data_parallel": Strategy("data", ("batch_split",)),
    "tensor_parallel": Strategy("model", ("dimension", "replicas")),
    "replicate": Strategy(None, ()),
}

#: What a value may be, by key; `*` is any name, `[]` an item of a list.
ALLOWED: Final[dict[str, str]] = {
    "": "a mapping with the keys mesh, sharding_config",
    "mesh": "a mapping of axis names to sizes, such as {data: 2, model: 2}",
    "mesh.*": "an integer >= 1",
    "sharding_config": "a mapping of signals to rules",
    "sharding_config.*": "a mapping with strategy or shard",
    "sharding_config.*.strategy": ", ".join(STRATEGIES),
    "sharding_config.*.batch_split": "an integer >= 1",
    "sharding_config.*.dimension": "an integer >= 0",
    "sharding_config.*.replicas": "an integer >= 1",
    "sharding_config.*.shard": "a mapping with axis and workers",
    "sharding_config.*.shard.axis": "an integer >= 0",
    "sharding_config.*.shard.workers": "a list of distinct integers >= 0",
    "sharding_config.*.shard.workers[]": "an integer >= 0",
    "sharding_config.*.mesh_axis": "the name of a mesh axis",
    "sharding_config.*.backward": "the name of another rule",
    "sharding_config.*.compile": "true or false",
}

_AXIS_NAME: Final = "a name of letters, digits and _, not starting with a digit"
_SIGNAL_NAME: Final = "a name of 1 to 200 printable characters"

Index = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Count = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Axis = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Signal = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]


class _Mistake(NamedTuple):
    key: Key
    text: str
    allowed: str


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class ExplicitShard(_Strict):
    """The explicit form: cut one tensor dimension over the workers that are named."""

    axis: Index = Field(description="The tensor dimension that is cut.")
    workers: Annotated[tuple[Index, ...], Field(strict=False)] = Field(
        description="The workers that hold the pieces; their order means nothing.",
        json_schema_extra={"minItems": 1, "uniqueItems": True},
    )


class Rule(_Strict):
    """How what is created, tagged or produced in one signal is sharded. A rule may also be only hints."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "not": {"required": ["strategy", "shard"]}})

    strategy: Literal["data_parallel", "tensor_parallel", "replicate"] | None = Field(
        default=None, description="A named way to shard; shard: is the explicit form."
    )
    batch_split: Count | None = Field(default=None, description="data_parallel: into how many parts a batch is cut.")
    dimension: Index | None = Field(
        default=None,
        description="tensor_parallel: the dimension of a weight (out, in) that is cut; without it the cheapest.",
    )
    replicas: Count | None = Field(default=None, description="tensor_parallel: how many copies of the group there are.")
    shard: ExplicitShard | None = Field(
        default=None, description="The explicit form: a tensor dimension and the workers."
    )
    mesh_axis: Axis | None = Field(default=None, description="The mesh axis to use in place of the strategy's own.")
    backward: Signal | None = Field(default=None, description="The rule that holds for the gradients.")
    compile: bool | None = Field(default=None, description="Whether to compile what runs in this signal.")

    _where: str = PrivateAttr("<config>")

    @property
    def where(self) -> str:
        """Where the rule is written, as file:line."""
        return self._where

    @property
    def axis(self) -> str | None:
        """The mesh axis that the rule speaks of, None where it speaks of none."""
        return self.mesh_axis or (STRATEGIES[self.strategy].axis if self.strategy else None)


class Config(_Strict):
    """A mesh and the rules by signal. `Config()` is the empty one: everything on one worker."""

    mesh: Annotated[dict[Axis, Count], Field(min_length=1, max_length=8)] | None = Field(
        default=None, description="The named axes over which workers are laid out, the last one the closest."
    )
    rules: Annotated[dict[Signal, Rule], Field(max_length=10_000)] = Field(
        default_factory=dict, alias="sharding_config", description="A rule for each signal."
    )

    _mesh_where: str = PrivateAttr("<config>")

    @property
    def mesh_where(self) -> str:
        """Where the mesh is written, as file:line; without a mesh, the file."""
        return self._mesh_where

    @classmethod
    def from_plain(cls, plain: object, source: str = "<config>", places: Places | None = None) -> Config:
        """The config that plain mappings, lists and scalars spell as the YAML does. Raises ConfigError.

        `places` says where each key is written, as file:line; a key that it lacks is where the nearest above it is.
        """
        places = {(): source, **(places or {})}
        if isinstance(plain, Mapping):  # a key whose lines are all commented out is no mistake
            plain = {key: value for key, value in plain.items() if value is not None or key not in _TOP}
        try:
            config = cls.model_validate(plain)
        except ValidationError as error:
            raise _refusal(map(_explain, error.errors(include_url=False)), places) from None
        for signal, rule in config.rules.items():
            rule._where = _place(("sharding_config", signal), places)
        config._mesh_where = _place(("mesh",), places)
        if mistakes := list(_contradictions(config)):
            raise _refusal(mistakes, places)
        return config

    def to_plain(self) -> dict[str, Any]:
        """What `from_plain` reads: what was given, and nothing else."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_wire(self) -> dict[str, Any]:
        """Plain values for msgpack; `from_wire` reads them."""
        return {
            "config": self.to_plain(),
            "mesh_where": self.mesh_where,
            "where": [rule.where for rule in self.rules.values()],
        }

    @classmethod
    def from_wire(cls, message: object) -> Config:
        """The config that `to_wire` made, checked as if it had never been. Raises ConfigError."""
        match message:
            case {"config": {**plain}, "mesh_where": str(mesh_where), "where": [*where], **rest} if not rest:
                rules = plain.get("sharding_config", {})
            case _:
                raise ConfigError("not a sharding config; allowed: what Config.to_wire() makes")
        lines = [mesh_where, *where]
        if not isinstance(rules, dict) or len(where) != len(rules) or not all(map(_is_place, lines)):
            raise ConfigError("a sharding config that does not say where its rules are; allowed: one file:line each")
        places: dict[Key, str] = {("sharding_config", signal): line for signal, line in zip(rules, where, strict=True)}
        return cls.from_plain(plain, places={**places, ("mesh",): mesh_where})

    def overlay(self, other: Config) -> Config:
        """This config with `other` on top: its rules win signal by signal, and its mesh where it has one.

        Raises ConfigError where the two contradict each other.
        """
        rules = {**self.rules, **other.rules}
        mesh = self if other.mesh is None else other
        places: dict[Key, str] = {("sharding_config", signal): rule.where for signal, rule in rules.items()}
        plain = {**self.to_plain(), **other.to_plain()}
        plain["sharding_config"] = {
            signal: rule.model_dump(mode="json", exclude_none=True) for signal, rule in rules.items()
        }
        return Config.from_plain(plain, places={**places, ("mesh",): mesh.mesh_where})

    def near_miss(self, signal: str) -> str | None:
        """The rule whose name is nearly `signal`, when there is none of that name: a likely slip of the pen."""
        return None if signal in self.rules else _nearest(signal, self.rules)

    def workers_needed(self) -> int:
        """The fewest workers that the config speaks of: its mesh, the parts of a batch, the largest worker index."""
        rules = self.rules.values()
        named = [index + 1 for rule in rules if rule.shard for index in rule.shard.workers]
        return max([math.prod((self.mesh or {}).values()), *named, *(rule.batch_split or 1 for rule in rules)])

    def mesh_for(self, workers: int) -> dict[str, int]:
        """The named axes over the first workers of `workers`; the last axis is the closest. Raises ConfigError.

        The mesh that the config gives, or one derived from its rules: an axis for each that they speak of, as large as
        they say; one that none gives a size to takes the workers that are left, and copies of a tensor-parallel group
        that no other axis tells apart get the axis `replicas`.
        """
        if workers < 1:
            raise ValueError(f"a mesh needs at least one worker, not {workers}")
        mesh = dict(self.mesh) if self.mesh is not None else self._derive(workers)
        size = math.prod(mesh.values())
        if size > workers:
            where = self.mesh_where if self.mesh is not None else _strategies(self)[0][1].where
            text = f"{_show_mesh(mesh)} takes {size} workers, there {_are(workers)}"
            raise ConfigError(f"{where}: mesh: {text}; allowed: a mesh that takes at most {workers}")
        for signal, rule in self.rules.items():
            copies = size // mesh[str(rule.axis)] if rule.replicas else None
            if rule.replicas != copies:
                raise _ask_for_mesh(rule, f"replicas is {rule.replicas}, but {_show_mesh(mesh)} holds {copies} copies")
            for position, index in enumerate(rule.shard.workers if rule.shard else ()):
                if index >= size:
                    outside = f"there {_are(workers)}" if size == workers else f"the mesh is {_show_mesh(mesh)}"
                    key = show_key(("sharding_config", signal, "shard", "workers", position))
                    text = f"{key}: there is no worker {index}, {outside}"
                    raise ConfigError(f"{rule.where}: {text}; allowed: 0 to {size - 1}")
        return mesh

    def _derive(self, workers: int) -> dict[str, int]:
        rules = _strategies(self)
        if not rules:
            placed = any(rule.strategy or rule.shard for rule in self.rules.values())
            return {"workers": workers if placed else 1}
        sizes: dict[str, int | None] = {}
        for signal, rule in rules:
            axis, size = str(rule.axis), _size(signal, rule, workers)
            known = sizes.setdefault(axis, size)
            if None not in (known, size) and known != size:
                raise _ask_for_mesh(
                    rule, f"the mesh axis {axis} would have size {size}, by the rules before it {known}"
                )
            sizes[axis] = size if known is None else known
        free = [axis for axis, size in sizes.items() if size is None]
        if len(free) > 1:
            raise _ask_for_mesh(rules[0][1], f"nothing says how large the mesh axes {' and '.join(free)} are")
        mesh = {axis: size or 1 for axis, size in sizes.items()}
        rest = max(1, workers // math.prod(mesh.values()))
        if free:
            mesh[free[0]] = rest
        elif rest > 1 and any(rule.replicas for _, rule in rules):
            mesh = {"replicas": rest} | mesh
        return mesh

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema with which editors complete and check the YAML."""
        schema = cls.model_json_schema(by_alias=True, schema_generator=_EditorSchema)
        return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": "GT sharding config"}


_TOP: Final = ("mesh", "sharding_config")


class _EditorSchema(GenerateJsonSchema):
    """Absent is the only way to give nothing: null, pydantic's spelling of it, is refused in a file."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def load(path: str | os.PathLike[str]) -> Config:
    """The config in the file at `path`. Raises ConfigError, also where the file cannot be read."""
    return parse(read_text(path), os.fspath(path))


def parse(text: str, source: str = "<config>") -> Config:
    """The config that the YAML in `text` spells; `source` is what errors call it. Raises ConfigError."""
    plain, places = read_document(text, source)
    return Config.from_plain({} if plain is None else plain, source, places)


def _explain(error: ErrorDetails) -> _Mistake:
    """Pydantic's error in our words."""
    key, kind, given = error["loc"], error["type"], error["input"]
    if key and key[-1] == "[key]":
        allowed = _AXIS_NAME if key[0] == "mesh" else _SIGNAL_NAME
        return _Mistake(key[:-1], f"{show(given)} is not a name", allowed)
    allowed = _allowed(key)
    match kind:
        case "extra_forbidden":
            model = ExplicitShard if "shard" in key[2:-1] else Rule if len(key) > 1 else Config
            known = [field.alias or name for name, field in model.model_fields.items()]
            near = _nearest(str(key[-1]), known)
            hint = f", did you mean {near}?" if near else ""
            return _Mistake(key, f"unknown key{hint}", ", ".join(known))
        case "missing":
            return _Mistake(key, "is missing", allowed)
        case "literal_error":
            near = _nearest(str(given), STRATEGIES)
            hint = f", did you mean {near}?" if near else ""
            return _Mistake(key, f"{show(given)} is not a strategy{hint}", allowed)
        case "string_pattern_mismatch":
            return _Mistake(key, f"{show(given)} is not a name", allowed)
        case "greater_than_equal":
            return _Mistake(key, f"{show(given)} is too small", allowed)
        case "less_than_equal":
            return _Mistake(key, f"{show(given)} is too large", f"{allowed} and <= {MAX_NUMBER}")
        case "too_short":
            return _Mistake(key, "is empty", allowed)
        case "too_long":
            return _Mistake(key, f"has more than {error['ctx']['max_length']} entries", allowed)
    return _Mistake(key, f"{show(given)} is not {_KINDS.get(kind, 'a value that fits')}", allowed)


_KINDS: Final[dict[str, str]] = {
    "bool_type": "a boolean",
    "dict_type": "a mapping",
    "int_type": "an integer",
    "model_type": "a mapping",
    "string_type": "a name",
    "tuple_type": "a list",
}


def _contradictions(config: Config) -> Iterator[_Mistake]:
    """What is wrong between keys that are right by themselves."""
    for signal, rule in config.rules.items():
        key = ("sharding_config", signal)
        given = [name for name in Rule.model_fields if name in rule.model_fields_set]
        if not given:
            yield _Mistake(key, "the rule is empty", _allowed(key))
        for name in given:
            if getattr(rule, name) is None:
                yield _Mistake((*key, name), "nothing is given", _allowed((*key, name)))
        workers = rule.shard.workers if rule.shard else None
        if workers is not None and (not workers or len(set(workers)) < len(workers)):
            at = (*key, "shard", "workers")
            yield _Mistake(at, "names a worker twice" if workers else "is empty", _allowed(at))
        if rule.backward is not None and rule.backward not in config.rules:
            near = _nearest(rule.backward, config.rules)
            hint = f", did you mean {near}?" if near else ""
            yield _Mistake((*key, "backward"), f"there is no rule {show(rule.backward)}{hint}", ", ".join(config.rules))
        yield from _misplaced_options(key, rule, given)
        if config.mesh is not None:
            yield from _mesh_contradictions(key, rule, config.mesh)


def _misplaced_options(key: Key, rule: Rule, given: list[str]) -> Iterator[_Mistake]:
    hints = ("mesh_axis", "backward", "compile")
    if rule.strategy and rule.shard:
        yield _Mistake((*key, "shard"), f"given beside the strategy {rule.strategy}", "either strategy or shard")
        return
    form = (
        f"the strategy {rule.strategy}" if rule.strategy else "the explicit form" if rule.shard else "a rule of hints"
    )
    takes = STRATEGIES[rule.strategy].options if rule.strategy else ()
    for name in given:
        if name in ("strategy", "shard", *hints, *takes):
            continue
        owner = next(strategy for strategy, (_, options) in STRATEGIES.items() if name in options)
        allowed = ", ".join((*takes, *hints)) + f" (the strategy {owner} takes {name})"
        yield _Mistake((*key, name), f"{form} does not take it", allowed)


def _mesh_contradictions(key: Key, rule: Rule, mesh: Mapping[str, int]) -> Iterator[_Mistake]:
    if rule.axis is None:
        return
    if rule.axis not in mesh:
        option = "mesh_axis" if rule.mesh_axis else "strategy"
        text = f"the mesh {_show_mesh(mesh)} has no axis {show(rule.axis)}"
        allowed = ", ".join(mesh) if rule.mesh_axis else f"a mesh with that axis, or mesh_axis: {' or '.join(mesh)}"
        yield _Mistake((*key, option), text, allowed)
        return
    size = mesh[rule.axis]
    if rule.batch_split not in (None, size):
        text = f"{rule.batch_split} contradicts the mesh {_show_mesh(mesh)}, whose axis {rule.axis} has size {size}"
        yield _Mistake((*key, "batch_split"), text, str(size))
    copies = math.prod(mesh.values()) // size
    if rule.replicas not in (None, copies):
        groups = f"{copies} {'copy' if copies == 1 else 'copies'} of its axis {rule.axis}"
        yield _Mistake(
            (*key, "replicas"),
            f"{rule.replicas} contradicts the mesh {_show_mesh(mesh)}, which holds {groups}",
            str(copies),
        )


def _strategies(config: Config) -> list[tuple[str, Rule]]:
    """The rules that speak of a mesh axis: data before model, because the last axis of a mesh is the closest."""
    return [
        (signal, rule)
        for strategy in ("data_parallel", "tensor_parallel")
        for signal, rule in config.rules.items()
        if rule.strategy == strategy
    ]


def _size(signal: str, rule: Rule, workers: int) -> int | None:
    """The size that one rule gives to its axis, None where it gives none."""
    key = ("sharding_config", signal, "batch_split" if rule.batch_split else "replicas")
    if rule.batch_split and rule.batch_split > workers:
        text = f"{rule.batch_split} parts need as many workers, there {_are(workers)}"
        raise ConfigError(f"{rule.where}: {show_key(key)}: {text}; allowed: 1 to {workers}")
    if rule.replicas and workers % rule.replicas:
        text = f"there {_are(workers)}, which {rule.replicas} does not divide"
        divisors = ", ".join(str(n) for n in range(1, workers + 1) if workers % n == 0)
        raise ConfigError(f"{rule.where}: {show_key(key)}: {text}; allowed: {divisors}")
    return rule.batch_split or (workers // rule.replicas if rule.replicas else None)


def _ask_for_mesh(rule: Rule, text: str) -> ConfigError:
    return ConfigError(f"{rule.where}: mesh: {text}; allowed: say it, for example mesh: {{data: 2, model: 2}}")


def _refusal(mistakes: Iterable[_Mistake], places: Places) -> ConfigError:
    """All mistakes in the order of their lines, one a line."""
    order = {place: index for index, place in enumerate(places.values())}
    lines = [(_place(key, places), show_key(key), text, allowed) for key, text, allowed in mistakes]
    lines.sort(key=lambda line: order[line[0]])
    shown = [": ".join(filter(None, (*line[:3],))) + f"; allowed: {line[3]}" for line in lines[:MAX_MISTAKES]]
    if len(lines) > MAX_MISTAKES:
        shown.append(f"and {len(lines) - MAX_MISTAKES} more")
    return ConfigError("\n".join(shown))


def _place(key: Key, places: Places) -> str:
    while key not in places:
        key = key[:-1]
    return places[key]


def _is_place(line: object) -> bool:
    return isinstance(line, str) and len(line) <= 4096 and line.isprintable()


def _allowed(key: Key) -> str:
    parts = ["*" if index == 1 else f"{part}" for index, part in enumerate(key) if not isinstance(part, int)]
    return ALLOWED.get(".".join(parts) + "[]" * any(isinstance(part, int) for part in key), "")


def _nearest(word: str, words: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(word, list(words), n=1, cutoff=0.7)), None)


def _show_mesh(mesh: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{axis}: {size}" for axis, size in mesh.items()) + "}"


def _are(workers: int) -> str:
    return "is 1 worker" if workers == 1 else f"are {workers} workers"
