"""Keys for TCP: the files that hold them, which public keys a service accepts, and which key a peer uses where.

A service has a key pair, and so has everybody who connects to it; each side proves that it holds its secret (CURVE). All that
a user keeps is in one folder, GT_KEYS or ~/.config/gt/keys:

    service.key          the pair of this user's services
    own.key              the pair with which this user connects to them, with all roles
    at/HOST:PORT.key     the pair with which this user connects to that address, where it is another one
    NAME.key             a pair that `gt keys new NAME` made: for another program, person or machine, which is given this file
    authorized/NAME.pub  the public part of that pair, and its role: who may connect
    groups.toml          groups of users and keys, with which programs may share (`gt/daemon/groups.py`)
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gt.daemon.groups import NamedGroups
from gt.daemon.registry import services
from gt.errors import GTError

from . import addresses, transport
from .principals import ALL_ROLES, Principal, PrincipalRole
from .transport import CurveKeys

OWN_KEY_NAME: Final = "own"
SERVICE_KEY_NAME: Final = "service"
_NAME_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_KEY_FORM: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""32 bytes as ZeroMQ writes them (Z85)."""
MAX_KEY_FILE_BYTES: Final = 4096


class KeyRefused(GTError, ValueError):
    """A key file that is missing, malformed, or readable by others; names the file and what to do."""


def key_folder() -> Path:
    """Where this user's keys are."""
    chosen = os.environ.get("GT_KEYS")
    if chosen:
        return Path(chosen)
    config = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(config) if config else Path.home() / ".config") / "gt" / "keys"
    except RuntimeError:
        raise KeyRefused("this user has no home folder for keys: GT_KEYS names another one") from None


# files


def new_key(name: str, role: PrincipalRole) -> Path:
    """Make a key pair for somebody who is to connect to this user's services, and authorise it. Returns the file to give to
    them. Raises `KeyRefused` if the name is taken or is none."""
    if not _NAME_FORM.fullmatch(name) or name in (OWN_KEY_NAME, SERVICE_KEY_NAME):
        raise KeyRefused(
            f"{name!r} is no name for a key: say letters, digits, '_', '-', '.' or '@'; not own or service"
        )
    folder = key_folder()
    path, public_path = folder / f"{name}.key", folder / "authorized" / f"{name}.pub"
    pair = transport.key_pair()
    for each in (path, public_path):
        if each.exists():
            raise KeyRefused(f"{each} exists already: choose another name, or remove it")
    _write(path, {"public": pair.public, "secret": pair.secret, "service": service_key().public}, mode=0o600)
    _write(public_path, {"public": pair.public, "role": role.value}, mode=0o644)
    return path


def service_key() -> CurveKeys:
    """The key pair of this user's services, which is made when it is first needed."""
    path = key_folder() / f"{SERVICE_KEY_NAME}.key"
    if not path.exists():
        pair = transport.key_pair()
        _write(path, {"public": pair.public, "secret": pair.secret}, mode=0o600)
    return _read_pair(path, ("public", "secret"))


def own_key() -> CurveKeys:
    """The key with which this user connects to services of their own, made when it is first needed."""
    path, service = own_key_path(), service_key().public
    pair = read_key(path) if path.exists() else transport.key_pair()
    if pair.server != service:  # it is new, or the services' key was replaced
        path.unlink(missing_ok=True)
        _write(path, {"public": pair.public, "secret": pair.secret, "service": service}, mode=0o600)
    return read_key(path)


def own_key_path() -> Path:
    """Where that key is."""
    return key_folder() / f"{OWN_KEY_NAME}.key"


def read_key(path: str | Path) -> CurveKeys:
    """The key in a file that `gt keys new` made. Raises `KeyRefused`."""
    return _read_pair(Path(path), ("public", "secret", "service"))


def _read_pair(path: Path, fields: tuple[str, ...]) -> CurveKeys:
    said = _read(path, secret=True)
    found = [said.get(field) for field in fields]
    if not all(isinstance(each, str) and _KEY_FORM.fullmatch(each) for each in found):
        raise KeyRefused(f"{path} is no key file: make one with `gt keys new NAME`")
    return CurveKeys(*map(str, found))


def _read(path: Path, *, secret: bool) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            shown = os.fstat(file.fileno()).st_mode & 0o077
            text = file.read(MAX_KEY_FILE_BYTES)
        values = tomllib.loads(text.decode("ascii"))
    except OSError as error:
        raise KeyRefused(f"{path}: {error.strerror}; a key file is made with `gt keys new NAME`") from None
    except ValueError:
        raise KeyRefused(f"{path} is no key file: make one with `gt keys new NAME`") from None
    if secret and shown:
        raise KeyRefused(f"{path} can be read by others, so it is no secret: chmod 600 {path}")
    return values


def _write(path: Path, values: dict[str, str], *, mode: int) -> None:
    """Write a file, whole and with its final permissions or not at all; one that is there already stays as it is."""
    draft = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        for folder in (key_folder(), path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.writelines(f'{name} = "{value}"\n' for name, value in values.items())
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)  # unlike a rename, it replaces nothing
        finally:
            draft.unlink()
    except OSError as error:
        raise KeyRefused(f"cannot write {path}: {error.strerror}; GT_KEYS names another folder for keys") from None


# who is accepted


class AuthorizedKeys:
    """The public keys that this user's services accept. Files that come, change and go are noticed at the next look."""

    def __init__(self) -> None:
        self.folder = key_folder() / "authorized"
        self.own = own_key().public
        self.seen: list[tuple[str, int, int]] = []
        """The files as they were at the last look: name, time of change, size."""
        self.known: dict[str, Principal] = {}
        self.groups = NamedGroups(key_folder())
        self.grouped: dict[str, tuple[str, ...]] = {}
        """The groups as they were at the last look."""
        self.look()

    def look(self) -> None:
        """Read the folder again if anything in it has changed, or who is in which group."""
        seen = sorted(self._files())
        self.groups.look()
        if seen == self.seen and self.known and self.groups.of == self.grouped:
            return
        known = {self.own: user_principal(os.geteuid(), ALL_ROLES, self.groups)}
        for name, _, _ in seen:
            with contextlib.suppress(KeyRefused, ValueError):
                said = _read(self.folder / name, secret=False)
                public = str(said.get("public", ""))
                if _KEY_FORM.fullmatch(public):
                    roles = frozenset({PrincipalRole(said.get("role", "user"))})
                    short = name.removesuffix(".pub")
                    known.setdefault(public, Principal(f"key {short}", roles, self.groups.names_of_key(short)))
        self.seen, self.known, self.grouped = seen, known, self.groups.of

    def _files(self) -> Iterator[tuple[str, int, int]]:
        try:
            found = list(os.scandir(self.folder))
        except OSError:
            return  # there is none yet
        for entry in found:
            with contextlib.suppress(OSError):
                if entry.name.endswith(".pub") and not entry.name.startswith("."):
                    stat = entry.stat()
                    yield entry.name, stat.st_mtime_ns, stat.st_size

    def principal(self, public: str) -> Principal | None:
        """Whose key that is; None: nobody's that is known."""
        return self.known.get(public)

    def accepts(self, public: str) -> bool:
        """Whether a key is known, after another look at the folder."""
        self.look()
        return public in self.known

    def others(self) -> bool:
        """Whether any key but the user's own is authorised."""
        return len(self.known) > 1


def user_principal(uid: int, roles: frozenset[PrincipalRole], groups: NamedGroups) -> Principal:
    """The principal that is a user of this machine."""
    return Principal(f"user {uid}", roles, groups.names_of_user(uid))


# who uses which key


def owner_keys(address: str) -> CurveKeys | None:
    """The keys with which the owner of a service connects to it at `address`, also where it is on another machine, to which the
    folder of keys was copied; None on a Unix socket. Raises `KeyRefused`."""
    return keys_for(address) or (own_key() if address.startswith("tcp://") else None)


def keys_for(address: str, path: str | None = None) -> CurveKeys | None:
    """The keys with which to connect to the service at `address`; None where it needs none: a Unix socket, or TCP without keys.

    They are those in the file at `path`, or that GT_KEY names, or in the folder the one for this address; without one, this
    user's own, for services of this user on this machine. Raises `KeyRefused`.
    """
    if not address.startswith("tcp://"):
        return None
    chosen = path or os.environ.get("GT_KEY")
    if chosen:
        return read_key(chosen)
    placed = key_folder() / "at" / f"{address.removeprefix('tcp://').replace('/', '_')}.key"
    if placed.exists():
        return read_key(placed)
    for service in services():
        if service.key and addresses.is_same_address(service.address, address):
            return own_key()._replace(server=service.key)
    return None
