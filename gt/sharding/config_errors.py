"""Turns pydantic's errors into messages about the config file: the key as it is written there, and what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .config_turns import RULE_KEYS, SHARD_KEYS, TOP_KEYS
from .spelling import meant
from .strategies import MAX_NUMBER, allowed_at
from .yaml_document import Key, Mistake, show

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_AXIS_NAME: Final = "a name of letters, digits and _, not starting with a digit"
_SIGNAL_NAME: Final = "a name of 1 to 200 printable characters"


COUNTED: Final = "integer"
"""How an error names the size of a mesh axis that is not `auto`, behind its key."""


def written_key(key: Key, plain: Any) -> Key:
    """A key as the file has it: one rule for a signal is read as a list of one."""
    if key[:1] == ("mesh",) and key[2:] == (COUNTED,):
        return key[:2]
    listed = len(key) > 2 and isinstance(key[2], int) and isinstance(plain[key[0]][key[1]], (list, tuple))
    if len(key) > 2 and isinstance(key[2], int) and not listed:
        return (*key[:2], *key[3:])
    return key


def explain(error: ErrorDetails, key: Key) -> Mistake:
    """Pydantic's error in our words."""
    kind, given = error["type"], error["input"]
    if key and key[-1] == "[key]":
        allowed = _AXIS_NAME if key[0] == "mesh" else _SIGNAL_NAME
        return Mistake(key[:-1], f"{show(given)} is not a name", allowed)
    allowed = allowed_at(key)
    match kind:
        case "extra_forbidden":
            known = SHARD_KEYS if "shard" in key[2:-1] else RULE_KEYS if len(key) > 1 else TOP_KEYS
            maybe = (
                f", did you mean sharding_config.{key[0]}?" if _is_signal(key, given) else meant(str(key[-1]), known)
            )
            return Mistake(key, f"unknown key{maybe}", ", ".join(known))
        case "missing":
            return Mistake(key, "is missing", allowed)
        case "literal_error":
            return Mistake(key, f"{show(given)} is not a {key[-1]}{meant(str(given), allowed.split(', '))}", allowed)
        case "string_pattern_mismatch":
            return Mistake(key, f"{show(given)} is not a {'device' if key[-1] == 'device' else 'name'}", allowed)
        case "greater_than_equal":
            return Mistake(key, f"{show(given)} is too small", allowed)
        case "less_than_equal":
            most = "" if key[-1] in ("blocks", "microbatches", "weight", "max_plan") else f" and <= {MAX_NUMBER}"
            return Mistake(key, f"{show(given)} is too large", allowed + most)
        case "too_short":
            return Mistake(key, "is empty", allowed)
        case "too_long":
            return Mistake(key, f"has more than {error['ctx']['max_length']} entries", allowed)
    return Mistake(key, f"{show(given)} is not {_KINDS.get(kind, 'a value that fits')}", allowed)


def _is_signal(key: Key, given: Any) -> bool:
    """Whether an unknown key is at the top, and what it has is a rule, or begins a list of rules."""
    rule = given[0] if isinstance(given, (list, tuple)) and given else given
    return len(key) == 1 and isinstance(rule, dict) and any(each in rule for each in RULE_KEYS)


_KINDS: Final[dict[str, str]] = {
    "bool_type": "a boolean",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "an integer",
    "model_type": "a mapping",
    "string_type": "a name",
    "tuple_type": "a list",
    "value_error": "a time",
}
