"""The table of limits: what each principal is granted, as an operator's YAML file says (`gt up --limits FILE`).

    default:                          # whoever has no row
      sessions: 8
    principals:
      user:alice: {weight: 4, reserved: 0.25}
      uid:1007: {live_bytes: 4GB, priority: batch}
      key:ci: {sessions: 2, when_full: refuse, workers: 1, instructions_per_second: 100000}
      group:students: {weight: 0.5}   # for each of its members that has no row of its own

What a row does not say is as in `default`. Whatever is wrong is refused with `ConfigError`: file, line, key and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from gt.sharding.options import LARGEST_WEIGHT, LEAST_WEIGHT, size
from gt.sharding.spelling import meant
from gt.sharding.yaml_document import Key, Mistake, Places, read_document, refusal, show

WAIT: Final = "wait"
REFUSE: Final = "refuse"
CLASSES: Final = ("interactive", "normal", "batch")
"""The most urgent one first."""
MAX_PRINCIPALS: Final = 4096
"""The most rows of a file, and the most principals that they may name."""
MAX_RESERVED: Final = 0.9
"""Of a worker's time, for all principals together: the rest is what keeps everybody else going."""
MAX_COUNT: Final = 1_000_000
UNLIMITED: Final = "unlimited"

Lookup = Callable[[str, str], Collection[int]]
"""The uids of a 'user' or of the members of a 'group', by its name. Raises `KeyError`."""


class PrincipalLimits(NamedTuple):
    """What one principal is granted; None is no limit."""

    weight: float = 1.0
    """Of its share of the workers' time and memory, beside that of others."""
    reserved: float = 0.0
    """The part of each of its workers' time that it gets at least, whatever others weigh."""
    live_bytes: int | None = None
    """Of its tensors on one worker, of all its sessions together."""
    workers: int | None = None
    """That its sessions use at one time, all together."""
    sessions: int | None = None
    """At one time."""
    when_full: str = WAIT
    """Whether one session more waits in a queue, or is refused."""
    instructions_per_second: float | None = None
    """That its sessions issue, all together."""
    priority: str = CLASSES[0]
    """The most urgent class that its sessions may have."""


NO_LIMITS: Final = PrincipalLimits()


class LimitTable(NamedTuple):
    """The limits of everybody: by the principal's name as `gt/wire/principals.py` has it, or else the default."""

    named: Mapping[str, PrincipalLimits]
    default: PrincipalLimits = NO_LIMITS

    def of(self, principal: str) -> PrincipalLimits:
        """The limits of a principal."""
        return self.named.get(principal, self.default)


UNLIMITED_TABLE: Final = LimitTable({})


class _LimitKey(NamedTuple):
    """A key of a row: what is allowed, and what reads it, raising `ValueError`."""

    allowed: str
    read: Callable[[Any], Any]


def _number(least: float, most: float) -> Callable[[Any], float]:
    def read(said: Any) -> float:
        if type(said) not in (int, float) or not least <= said <= most:
            raise ValueError
        return float(said)

    return read


def _count(said: Any) -> int:
    if type(said) is not int or not 1 <= said <= MAX_COUNT:
        raise ValueError
    return said


def _size(said: Any) -> int:
    found = size(said)
    if found < 1:
        raise ValueError
    return found


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(said: Any) -> str:
        if said not in words:
            raise ValueError
        return str(said)

    return read


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda said: None if said == UNLIMITED else read(said)


KEYS: Final[dict[str, _LimitKey]] = {
    "weight": _LimitKey(f"a number from {LEAST_WEIGHT:g} to {LARGEST_WEIGHT:g}", _number(LEAST_WEIGHT, LARGEST_WEIGHT)),
    "reserved": _LimitKey(f"a share from 0 to {MAX_RESERVED:g}", _number(0, MAX_RESERVED)),
    "live_bytes": _LimitKey(f"a size such as 8GB or 512MiB, or {UNLIMITED}", _or_none(_size)),
    "workers": _LimitKey(f"a whole number from 1, or {UNLIMITED}", _or_none(_count)),
    "sessions": _LimitKey(f"a whole number from 1, or {UNLIMITED}", _or_none(_count)),
    "when_full": _LimitKey(f"{WAIT}, {REFUSE}", _one_of(WAIT, REFUSE)),
    "instructions_per_second": _LimitKey(
        f"a number from 1, or {UNLIMITED}", _or_none(_number(1, float(MAX_COUNT) ** 2))
    ),
    "priority": _LimitKey(", ".join(CLASSES), _one_of(*CLASSES)),
}
"""The keys of a row."""
assert tuple(KEYS) == PrincipalLimits._fields, "a row has a key for each limit"

_TOP_KEYS: Final = ("default", "principals")
_KINDS: Final = ("uid:NUMBER", "user:NAME", "key:NAME", "group:NAME")


def parse_limits(text: str, source: str, lookup: Lookup) -> LimitTable:
    """The table that a YAML text says; errors call it `source`. Raises `ConfigError`."""
    plain, places = read_document(text, source)
    return _TableReader(places, lookup).read({} if plain is None else plain)


class _TableReader:
    """Reads the plain values of a file, and notes all mistakes."""

    def __init__(self, places: Places, lookup: Lookup) -> None:
        self.places = {(): "<limits>", **places}
        self.lookup = lookup
        self.mistakes: list[Mistake] = []

    def read(self, plain: Any) -> LimitTable:
        """The table. Raises `ConfigError` with the first mistakes."""
        rows = self._mapping((), plain, _TOP_KEYS)
        default = self._row(("default",), rows.get("default"), NO_LIMITS, shared=True)
        principals = rows.get("principals")
        named = self._mapping(("principals",), {} if principals is None else principals, None)
        own: dict[str, PrincipalLimits] = {}
        members: dict[str, PrincipalLimits] = {}
        for name, said in named.items():
            key = ("principals", name)
            kind, _, rest = name.partition(":")
            row = self._row(key, said, default, shared=kind == "group")
            for each in self._names(key, kind, rest):
                (members if kind == "group" else own).setdefault(each, row)
        found = {**members, **own}
        if len(found) > MAX_PRINCIPALS:
            self._wrong(("principals",), f"names {len(found):,} principals", f"at most {MAX_PRINCIPALS:,}")
        reserved = sum(row.reserved for row in found.values())
        if reserved > MAX_RESERVED + 1e-9:
            self._wrong(("principals",), f"reserves {reserved:g} in all", f"at most {MAX_RESERVED:g}")
        if self.mistakes:
            raise refusal(self.mistakes, self.places)
        return LimitTable(found, default)

    def _wrong(self, key: Key, text: str, allowed: str) -> None:
        self.mistakes.append(Mistake(key, text, allowed))

    def _mapping(self, key: Key, said: Any, allowed: Collection[str] | None) -> dict[str, Any]:
        """A mapping with these keys alone (None: any)."""
        if not isinstance(said, dict):
            self._wrong(key, f"{show(said)} is not a mapping", "a mapping")
            return {}
        for name in [each for each in said if allowed is not None and each not in allowed]:
            self._wrong((*key, name), f"unknown key{meant(name, [*(allowed or ())])}", ", ".join(allowed or ()))
        return said

    def _row(self, key: Key, said: Any, default: PrincipalLimits, *, shared: bool) -> PrincipalLimits:
        """The limits in one row; `shared`: it is for several principals, of whom none can have a part for itself."""
        given = self._mapping(key, {} if said is None else said, KEYS)
        found = {}
        for name, value in given.items():
            if name not in KEYS:
                continue
            if name == "reserved" and shared:
                self._wrong((*key, name), "is for one principal alone", "in a row of uid:, user: or key:")
                continue
            try:
                found[name] = KEYS[name].read(value)
            except (ValueError, OverflowError):
                self._wrong((*key, name), f"{show(value)} is no {name.replace('_', ' ')}", KEYS[name].allowed)
        return default._replace(**found)

    def _names(self, key: Key, kind: str, rest: str) -> list[str]:
        """The names of the principals that a row is for."""
        try:
            if kind == "uid" and rest.isascii() and rest.isdecimal() and len(rest) < 11:
                return [f"user {int(rest)}"]
            if kind == "key" and rest:
                return [f"key {rest}"]
            if kind in ("user", "group") and rest:
                return [f"user {uid}" for uid in sorted(self.lookup(kind, rest))]
        except KeyError:
            self._wrong(key, f"there is no {kind} {show(rest)} on this machine", f"a {kind} that `getent` knows")
            return []
        self._wrong(key, "is no principal", ", ".join(_KINDS))
        return []
