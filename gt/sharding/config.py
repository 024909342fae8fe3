"""The sharding config: the YAML file that says *where* a program's values are computed.

`load` and `parse` read a file into a `Config`; whatever is wrong in it is refused with `ConfigError`, one line for each
mistake: file, line, key, what was given and what is allowed. A `Config` is frozen, crosses the wire (`to_wire`, `from_wire`,
where it is checked again) and turns a number of workers into named mesh axes (`mesh_for`, `gt/sharding/config_meshes.py`).

Which strategies there are, and what each key allows, is in `gt/sharding/strategies.py`; what keys say about each other in
`gt/sharding/config_conflicts.py`. What a rule means for an op is the dispatcher's business. Only this module loads pydantic,
so nothing that `import gt` needs may import it at that time.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StringConstraints,
    Tag,
    ValidationError,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema

from gt.bounds import MAX_MICROBATCHES, MAX_NAMED_WORKERS, MAX_RULES
from gt.turns import finish

from . import config_meshes
from .config_conflicts import contradictions
from .config_errors import COUNTED, explain, written_key
from .config_places import from_message, places_of_rules
from .config_turns import MAX_SOUGHT_MISTAKES, plain_in_turns, rules_in_turns, short_top
from .device_names import DEVICE_PATTERN
from .duration import LEAST_PLAN_SECONDS, MOST_PLAN_SECONDS, seconds_of
from .options import LARGEST_WEIGHT, LEAST_WEIGHT
from .signal_patterns import is_pattern, matches
from .spelling import are_two, nearest
from .strategies import (
    AUTO_SIZE,
    DEFAULT_BLOCKS,
    MAX_AXES,
    MAX_BLOCKS,
    MAX_NUMBER,
    MAX_SIGNAL_RULES,
    STRATEGIES,
    allowed_at,
    rule_key,
)
from .yaml_document import Key, Mistake, Places, place_of, read_document, read_text, refusal

Index = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Count = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
AxisSize = Annotated[
    Annotated[Count, Tag(COUNTED)] | Annotated[Literal["auto"], Tag(AUTO_SIZE)],
    Discriminator(lambda given: AUTO_SIZE if given == AUTO_SIZE else COUNTED),
]
Axis = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Signal = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]


_SomeWorkers = Field(strict=False, max_length=MAX_NAMED_WORKERS)
Stages = Annotated[tuple[Annotated[tuple[Index, ...], _SomeWorkers], ...], _SomeWorkers]


PlanSeconds = Annotated[
    Annotated[float, Field(ge=LEAST_PLAN_SECONDS, le=MOST_PLAN_SECONDS, allow_inf_nan=False)],
    BeforeValidator(
        seconds_of,
        json_schema_input_type=Annotated[float, Field(ge=LEAST_PLAN_SECONDS, le=MOST_PLAN_SECONDS, allow_inf_nan=False)]
        | Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)? ?(us|µs|ms|s|min)$")],
    ),
]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class ExplicitShard(_Strict):
    """The explicit form: shard one tensor dimension over the named workers."""

    axis: Index = Field(description="The tensor dimension that is cut.")
    workers: Annotated[tuple[Index, ...], Field(strict=False, max_length=MAX_NAMED_WORKERS)] = Field(
        description="The workers that hold the pieces; their order means nothing.",
        json_schema_extra={"minItems": 1, "uniqueItems": True},
    )


class Rule(_Strict):
    """How tensors created, tagged or computed in one signal are sharded. A rule may also contain only hints."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "not": {"required": ["strategy", "shard"]}})

    strategy: (
        Literal[
            "data_parallel", "tensor_parallel", "fully_sharded", "sequence_parallel", "pipeline_parallel",
            "expert_parallel", "replicate", "auto",
        ]
        | None
    ) = Field(default=None, description="A named way to shard; shard: is the explicit form.")  # fmt: skip
    batch_split: Count | None = Field(default=None, description="data_parallel: into how many parts a batch is cut.")
    dimension: Index | None = Field(
        default=None,
        description="tensor_parallel: the dimension of a weight (out, in) that is cut; without it the cheapest. "
        "sequence_parallel: the dimension of activations that is the sequence, 1 if not given.",
    )
    replicas: Count | None = Field(default=None, description="tensor_parallel: how many copies of the group there are.")
    stages: Stages | None = Field(
        default=None,
        description="pipeline_parallel: the workers of each stage, in the order of the stages.",
        json_schema_extra={"minItems": 1},
    )
    microbatches: Annotated[int, Field(ge=1, le=MAX_MICROBATCHES)] | None = Field(
        default=None, description="pipeline_parallel: into how many parts a batch is cut in time; 1 if not given."
    )
    schedule: Literal["gpipe", "1f1b"] | None = Field(
        default=None, description="pipeline_parallel: the order of the stages' work; 1f1b if not given."
    )
    shard: ExplicitShard | None = Field(
        default=None, description="The explicit form: a tensor dimension and the workers."
    )
    mesh_axis: Axis | None = Field(default=None, description="The mesh axis to use in place of the strategy's own.")
    backward: Signal | None = Field(default=None, description="The rule that holds for the gradients.")
    compile: bool | None = Field(default=None, description="Whether to compile what runs in this signal.")
    device: Annotated[str, StringConstraints(pattern=DEVICE_PATTERN)] | None = Field(
        default=None,
        description="The workers to use, no other: a kind (cpu, cuda), a GPU (cuda:1, cuda:1@HOST), or one worker (gt:3).",
    )

    max_plan: PlanSeconds | None = Field(
        default=None,
        description="The longest that a plan with work of this signal is predicted to take: a number of seconds, or a text such"
        " as 20ms. Longer ones are cut.",
    )
    priority: Literal["interactive", "normal", "batch"] | None = Field(
        default=None,
        description="The class of plans that compute nothing but signals which say one; the session's if not given.",
    )

    _where: str = PrivateAttr("<config>")

    @property
    def where(self) -> str:
        """Where the rule is written, as file:line."""
        return self._where

    @property
    def axis(self) -> str | None:
        """The mesh axis that the rule speaks of, None where it speaks of none."""
        return self.mesh_axis or (STRATEGIES[self.strategy].axis if self.strategy else None)


class SignalConfig(Rule):
    """A rule from Python: `gt.register_config(name, gt.SignalConfig(...))`, with the keys of the YAML. Raises ConfigError."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            mistakes = [explain(each, ("sharding_config", "", *each["loc"])) for each in error.errors()]
            shown = [mistake._replace(key=mistake.key[2:]) for mistake in mistakes]
            raise refusal(shown, {(): "SignalConfig"}) from None


def _as_list(rules: object) -> object:
    return rules if isinstance(rules, (list, tuple)) else (rules,)


Rules = Annotated[
    tuple[Rule, ...],
    Field(max_length=MAX_SIGNAL_RULES, strict=False),
    BeforeValidator(
        _as_list,
        json_schema_input_type=Rule | Annotated[list[Rule], Field(min_length=1, max_length=MAX_SIGNAL_RULES)],
    ),
]
"""The rules of one signal: one, or several that speak of different mesh axes."""


class Config(_Strict):
    """A mesh and the rules by signal. `Config()` is empty: everything runs on one worker."""

    mesh: Annotated[dict[Axis, AxisSize], Field(min_length=1, max_length=MAX_AXES)] | None = Field(
        default=None,
        description="The named axes over which workers are laid out. One may be auto: as large as the"
        " workers of the service allow, of which some may join or leave while the session lasts.",
    )
    rules: Annotated[dict[Signal, Rules], Field(max_length=MAX_RULES)] = Field(
        default_factory=dict,
        alias="sharding_config",
        description="A rule for each signal, or a list of rules for different mesh axes. Names may be patterns (* ? []).",
    )
    deterministic: bool | None = Field(
        default=None, description="Whether values are the same bits on any number of workers; that takes longer."
    )
    blocks: Annotated[int, Field(ge=1, le=MAX_BLOCKS)] | None = Field(
        default=None,
        description=f"deterministic: into how many blocks everything is computed, a power of two; {DEFAULT_BLOCKS} if not given.",
    )

    priority: Literal["auto", "interactive", "normal", "batch"] | None = Field(
        default=None,
        description="The class of a session, where its program and GT_PRIORITY say nothing; auto if not given.",
    )
    weight: Annotated[float, Field(ge=LEAST_WEIGHT, le=LARGEST_WEIGHT)] | None = Field(
        default=None,
        description="What its program weighs among those of its user, where it and GT_WEIGHT say nothing; 1 if not given.",
    )

    max_plan: PlanSeconds | None = Field(
        default=None,
        description="The longest that any plan is predicted to take, where the rules of its signals say nothing; unlimited if not"
        " given.",
    )

    _mesh_where: str = PrivateAttr("<config>")

    @property
    def mesh_where(self) -> str:
        """Where the mesh is written, as file:line; without a mesh, the file."""
        return self._mesh_where

    @property
    def is_elastic(self) -> bool:
        """Whether the mesh grows and shrinks with the workers of the service."""
        return self.mesh is not None and AUTO_SIZE in self.mesh.values()

    @property
    def least_mesh(self) -> int:
        """The fewest workers that the mesh takes; 1 if the config gives none."""
        return config_meshes.least_size(self.mesh or {})

    @property
    def block_count(self) -> int:
        """Into how many blocks a deterministic session computes; 0 when it need not be deterministic."""
        return (self.blocks or DEFAULT_BLOCKS) if self.deterministic else 0

    def each(self) -> Iterator[tuple[Key, Rule]]:
        """Every rule and its key, in the order of the file."""
        for signal, rules in self.rules.items():
            for index, rule in enumerate(rules):
                yield rule_key(signal, len(rules), index), rule

    @classmethod
    def from_plain(cls, plain: object, source: str = "<config>", places: Places | None = None) -> Config:
        """The config that plain mappings, lists and scalars spell as the YAML does. Raises ConfigError.

        `places` says where each key is written, as file:line; a key that it lacks is where the nearest above it is.
        """
        return finish(cls.from_plain_in_turns(plain, source, places))

    @classmethod
    def from_plain_in_turns(
        cls, plain: object, source: str = "<config>", places: Places | None = None
    ) -> Generator[None, None, Config]:
        """The same, some rules in each turn."""
        places = {(): source, **(places or {})}
        if isinstance(plain, Mapping):
            given = short_top(dict(plain))  # a key whose lines are all commented out is no mistake
            plain = {key: value for key, value in given.items() if value is not None or key not in _TOP_KEYS}
        errors: list[ErrorDetails] = []
        config = yield from _validated(cls, plain, errors)
        if config is None:
            mistakes = []
            for each in errors[:MAX_SOUGHT_MISTAKES]:
                mistakes.append(explain(each, written_key(each["loc"], plain)))
                yield
            raise refusal(mistakes, places)
        for batch in rules_in_turns(config.each()):
            for key, rule in batch:
                rule._where = place_of(key, places)
            yield
        config._mesh_where = place_of(("mesh",), places)
        yield from config._agree(places)
        return config

    def _agree(self, places: Places) -> Generator[None, None, None]:
        """Raises ConfigError if keys contradict each other, with the first mistakes that are found."""
        mistakes = []
        for each in contradictions(self):
            if each is None:
                yield
            else:
                mistakes.append(each)
                if len(mistakes) == MAX_SOUGHT_MISTAKES:
                    break
        if mistakes:
            raise refusal(mistakes, places)

    def to_plain(self) -> dict[str, Any]:
        """What `from_plain` reads: what was given, and nothing else."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        plain["sharding_config"] = {
            signal: rules if len(rules) > 1 else rules[0] for signal, rules in plain["sharding_config"].items()
        }
        return plain

    def to_wire(self) -> dict[str, Any]:
        """Plain values for msgpack; `from_wire` reads them."""
        return {
            "config": self.to_plain(),
            "mesh_where": self.mesh_where,
            "where": [[rule.where for rule in rules] for rules in self.rules.values()],
        }

    @classmethod
    def from_wire(cls, message: object) -> Config:
        """The config that `to_wire` made, checked as if it had never been. Raises ConfigError."""
        return finish(cls.from_wire_in_turns(message))

    @classmethod
    def from_wire_in_turns(cls, message: object) -> Generator[None, None, Config]:
        """The same, some rules in each turn."""
        plain, places = yield from from_message(message)
        return (yield from cls.from_plain_in_turns(plain, places=places))

    def overlay(self, other: Config) -> Config:
        """This config with `other` on top: its rules win signal by signal, and its mesh where it has one.

        Raises ConfigError where the two contradict each other.
        """
        return finish(self.overlay_in_turns(other))

    def overlay_in_turns(self, other: Config) -> Generator[None, None, Config]:
        """The same, some rules in each turn. The two share their rules, which were checked one by one when they were read."""
        below = self.model_dump(include=_BESIDE_RULES, exclude_none=True)
        if other.deterministic is not None:
            below.pop("blocks", None)  # it goes with the word that it belongs to
        above = other.model_dump(include=_BESIDE_RULES, exclude_none=True)
        rules = {**self.rules, **other.rules}
        merged = type(self).model_validate({**below, **above}).model_copy(update={"rules": rules})
        merged._mesh_where = (self if other.mesh is None else other).mesh_where
        lines = ((signal, [rule.where for rule in each]) for signal, each in rules.items())
        places = yield from places_of_rules(lines, merged.mesh_where)
        places = {(): "<config>", **places}
        if len(rules) > MAX_RULES:
            raise refusal([_too_many_rules()], places)
        yield from merged._agree(places)
        return merged

    @property
    def pipelined(self) -> bool:
        """Whether some rule asks for a pipeline."""
        return any(rule.strategy == "pipeline_parallel" for _, rule in self.each())

    def with_rules(self, signal: str, rules: object, where: str) -> Config:
        """This config with other rules for one signal, in any form that a file allows. Raises ConfigError."""
        plain = self.to_plain()
        given = _as_list(rules)
        assert isinstance(given, (list, tuple))
        plain["sharding_config"][signal] = [
            each.model_dump(mode="json", exclude_none=True) if isinstance(each, Rule) else each for each in given
        ]
        lines = {name: [rule.where for rule in each] for name, each in self.rules.items()} | {
            signal: [where] * len(given)
        }
        places = finish(places_of_rules(((name, each or [where]) for name, each in lines.items()), self.mesh_where))
        return Config.from_plain(plain, where, places)

    def near_miss(self, signal: str) -> str | None:
        """The rule whose name is nearly `signal`, when none is for it: a likely typo."""
        if any(matches(name, signal) for name in self.rules):
            return None
        return nearest(signal, (name for name in self.rules if not is_pattern(name) and not are_two(name, signal)))

    def workers_needed(self) -> int:
        """The fewest workers that the config speaks of: its mesh, the parts of a batch, the largest worker index."""
        return config_meshes.workers_needed(self)

    def mesh_for(self, workers: int) -> dict[str, int]:
        """The named axes over some of so many `workers`. Raises ConfigError.

        The mesh that the config gives, or one derived from its rules.
        """
        return finish(config_meshes.mesh_in_turns(self, workers))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema with which editors complete and check the YAML."""
        schema = cls.model_json_schema(by_alias=True, schema_generator=_EditorSchema)
        return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": "GT sharding config"}


_TOP_KEYS: Final = ("mesh", "sharding_config")
_BESIDE_RULES: Final = {"mesh", "deterministic", "blocks", "priority", "weight", "max_plan"}


class _EditorSchema(GenerateJsonSchema):
    """Absent is the only way to give nothing: null, pydantic's spelling of it, is refused in a file."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def load(path: str | os.PathLike[str]) -> Config:
    """The config in the file at `path`. Raises ConfigError, also if the file cannot be read."""
    return parse(read_text(path), os.fspath(path))


def parse(text: str, source: str = "<config>") -> Config:
    """The config in the YAML `text`; error messages call it `source`. Raises ConfigError."""
    plain, places = read_document(text, source)
    return Config.from_plain({} if plain is None else plain, source, places)


def _validated(model: type[Config], plain: object, errors: list[ErrorDetails]) -> Generator[None, None, Config | None]:
    """Validates all but the rules, then some rules in each turn. None if there are errors, of which it adds the first to
    `errors`, in the order in which the fields are declared."""
    rules: dict[Any, Any] = {}
    if isinstance(plain, dict) and isinstance(plain.get("sharding_config"), dict):
        plain, rules = {**plain, "sharding_config": {}}, plain["sharding_config"]
    config, beside = _validate(model, plain)
    errors += [each for each in beside if each["loc"][:1] == ("mesh",)]
    valid: dict[str, tuple[Rule, ...]] = {}
    for batch, shortened in plain_in_turns(rules):
        some, wrong = _validate(model, {"sharding_config": batch})
        if shortened and some is not None:  # it was only looked at for mistakes
            some, wrong = _validate(model, {"sharding_config": {signal: rules[signal] for signal in batch}})
        errors += wrong
        if some is not None and len(rules) <= MAX_RULES:
            valid |= some.rules
        if len(errors) >= MAX_SOUGHT_MISTAKES:
            return None
        yield
    if len(rules) > MAX_RULES and not any(each["loc"][:1] == ("sharding_config",) for each in errors):
        key, kind, most = ("sharding_config",), "too_long", {"max_length": MAX_RULES}
        errors.append({"type": kind, "loc": key, "msg": "", "input": rules, "ctx": most})
    errors += [each for each in beside if each["loc"][:1] != ("mesh",)]
    if errors or config is None:
        return None
    return config.model_copy(update={"rules": valid}) if rules else config


def _validate(model: type[Config], plain: object) -> tuple[Config | None, list[ErrorDetails]]:
    """What pydantic makes of plain values, or its errors."""
    try:
        return model.model_validate(plain), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _too_many_rules() -> Mistake:
    return Mistake(("sharding_config",), f"has more than {MAX_RULES} entries", allowed_at(("sharding_config",)))
