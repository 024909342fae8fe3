"""Key files: who can make, read and change them, and what a service takes from them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

from gt.daemon import registry
from gt.wire import addresses, keys, transport
from gt.wire.keys import AuthorizedKeys, KeyRefused
from gt.wire.principals import ALL_ROLES, OBSERVER, USER, Principal


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folders, which are empty."""
    monkeypatch.setenv("GT_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("GT_KEY", raising=False)
    return tmp_path / "keys"


def test_keys_are_made_once_and_are_secret(folder: Path) -> None:
    """A user's own pair and that of their services stay; nobody else may read them."""
    service, own = keys.service_key(), keys.own_key()
    assert (keys.service_key(), keys.own_key()) == (service, own)
    assert own.server == service.public != own.public
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.glob("*")} == {
        "service.key": 0o600,
        "own.key": 0o600,
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert transport.key_pair_of(transport.key_bytes(own.secret)).public == own.public
    (folder / "service.key").unlink()
    replaced = keys.own_key()
    assert replaced == own._replace(server=keys.service_key().public) != own, "it follows the services' key"


def test_a_new_key_is_authorised_until_its_file_is_removed(folder: Path) -> None:
    """Each look at the folder sees what has come, changed and gone since."""
    known = AuthorizedKeys()
    assert not known.others()
    own = known.principal(keys.own_key().public)
    assert own is not None
    assert own[:2] == (f"user {os.getuid()}", ALL_ROLES)
    key = keys.read_key(keys.new_key("bob", USER))
    assert key.server == keys.service_key().public
    assert known.principal(key.public) is None
    assert known.accepts(key.public)
    assert known.principal(key.public) == Principal("key bob", frozenset({USER}), ("bob", "key:bob"))
    authorized = folder / "authorized" / "bob.pub"
    authorized.write_text(authorized.read_text().replace("user", "observer"))
    known.look()
    assert known.principal(key.public) == Principal("key bob", frozenset({OBSERVER}), ("bob", "key:bob"))
    authorized.unlink()
    assert not known.accepts(key.public)
    assert not known.others()


def test_the_groups_of_keys_follow_their_file(folder: Path) -> None:
    """A key is told apart from others by its groups too: whoever is in another one by now has to come again."""
    known = AuthorizedKeys()
    bob, eve = (keys.read_key(keys.new_key(name, USER)).public for name in ("bob", "eve"))
    (folder / "groups.toml").write_text('team = ["bob", "key:carol"]\nall = ["bob", "key:eve"]\n')
    known.look()
    assert known.known[bob].aliases == ("bob", "key:bob", "team", "all", "group:team", "group:all")
    assert known.known[eve].aliases == ("eve", "key:eve", "all", "group:all")
    (folder / "groups.toml").write_text('team = ["eve"]\n')
    known.look()
    assert [len(known.known[each].aliases) for each in (bob, eve)] == [2, 4]
    for malformed in ("team = 3", "team = [3]", "team = [", "\xff"):
        (folder / "groups.toml").write_bytes(malformed.encode("latin-1"))
        known.look()
        assert [len(known.known[each].aliases) for each in (bob, eve)] == [2, 2]
    (folder / "groups.toml").unlink()
    assert known.accepts(bob)


@pytest.mark.parametrize(
    "text",
    [
        "", "public = 5", 'public = "short"', "\x00", 'public = "{key}"\nrole = "king"', 'public = "{key}"\nrole = ["user"]',
        "é", 'public = "{key}"\npublic = "{key}"',
    ],
)  # fmt: skip
def test_a_malformed_file_authorises_nobody_and_keeps_nobody_out(folder: Path, text: str) -> None:
    good = keys.read_key(keys.new_key("good", USER))
    other = transport.key_pair().public
    (folder / "authorized" / "bad.pub").write_text(text.replace("{key}", other))
    known = AuthorizedKeys()
    assert known.accepts(good.public)
    assert not known.accepts(other)


def test_nobody_is_given_more_by_a_second_file(folder: Path) -> None:
    """A file that names the owner's own key changes nothing about it."""
    own = keys.own_key().public
    (folder / "authorized").mkdir()
    (folder / "authorized" / "a.pub").write_text(f'public = "{own}"\nrole = "observer"\n')
    known = AuthorizedKeys().principal(own)
    assert known is not None
    assert known.roles == ALL_ROLES


@pytest.mark.parametrize("name", ["", "own", "service", "../x", ".x", "a/b", "a b", "x" * 65])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(KeyRefused, match="no name for a key"):
        keys.new_key(name, USER)


def test_a_key_is_not_replaced() -> None:
    keys.new_key("bob", USER)
    with pytest.raises(KeyRefused, match="exists already"):
        keys.new_key("bob", USER)


def test_files_that_cannot_be_used_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    path = keys.new_key("bob", USER)
    path.chmod(0o640)
    with pytest.raises(KeyRefused, match="chmod 600"):
        keys.read_key(path)
    with pytest.raises(KeyRefused, match=r"No such file.*gt keys new"):
        keys.read_key(tmp_path / "none.key")
    with pytest.raises(KeyRefused, match="is no key file"):
        keys.read_key(folder / "service.key")


def test_which_key_is_used_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None on a Unix socket; the one that is named; or the user's own, for a service of theirs that has a key."""
    bob = keys.new_key("bob", USER)
    assert keys.keys_for("ipc:///x", str(bob)) is None
    assert keys.keys_for("tcp://127.0.0.1:7") is None
    assert keys.keys_for("tcp://127.0.0.1:7", str(bob)) == keys.read_key(bob)
    entry = registry.Registration("tcp://127.0.0.1:7", keys.service_key().public)
    assert keys.keys_for("tcp://127.0.0.1:7") == keys.own_key()
    assert keys.keys_for("tcp://localhost:7") == keys.own_key()
    assert keys.keys_for("tcp://127.0.0.1:8") is None
    monkeypatch.setenv("GT_KEY", str(bob))
    assert keys.keys_for("tcp://127.0.0.1:7") == keys.read_key(bob)
    monkeypatch.delenv("GT_KEY")
    entry.close()
    entry = registry.Registration("tcp://127.0.0.1:7")
    assert keys.keys_for("tcp://127.0.0.1:7") is None, "it runs without keys"
    entry.close()
    (keys.key_folder() / "at").mkdir()
    bob.rename(keys.key_folder() / "at" / "node.example:7.key")
    assert keys.keys_for("tcp://node.example:7") is not None
    assert keys.keys_for("tcp://node.example:8") is None


@pytest.mark.parametrize(
    ("listening", "address", "same"),
    [
        ("tcp://127.0.0.1:7", "tcp://127.0.0.1:7", True), ("tcp://127.0.0.1:7", "tcp://localhost:7", True),
        ("tcp://localhost:7", "tcp://127.0.0.1:7", True), ("tcp://0.0.0.0:7", "tcp://127.0.0.1:7", True),
        ("tcp://0.0.0.0:7", "tcp://example.org:7", False), ("tcp://127.0.0.1:7", "tcp://127.0.0.1:8", False),
        ("tcp://127.0.0.1:7", "tcp://127.0.0.2:7", False), ("ipc:///x", "ipc:///x", True),
        ("ipc:///x", "tcp://127.0.0.1:7", False), ("tcp://[::1]:7", "tcp://[::1]:7", True),
    ],
)  # fmt: skip
def test_which_addresses_are_one(listening: str, address: str, same: bool) -> None:
    assert addresses.is_same_address(listening, address) == same


def test_a_service_on_all_interfaces_is_at_each_address_of_this_machine() -> None:
    """So its owner needs no key there either."""
    here = {
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family is socket.AF_INET
    }
    for host in here:
        assert addresses.is_same_address("tcp://0.0.0.0:7", f"tcp://{host}:7")
        assert not addresses.is_same_address("tcp://0.0.0.0:7", f"tcp://{host}:8")
    assert "203.0.113.77" not in here, "an address for examples"
    assert not addresses.is_same_address("tcp://0.0.0.0:7", "tcp://203.0.113.77:7")


def test_a_socket_on_all_interfaces_is_reached_where_its_owner_was() -> None:
    assert addresses.reachable("tcp://0.0.0.0:8", "tcp://example.org:7") == "tcp://example.org:8"
    assert addresses.reachable("tcp://[::]:8", "tcp://[::1]:7") == "tcp://[::1]:8"
    assert addresses.reachable("tcp://127.0.0.1:8", "tcp://example.org:7") == "tcp://127.0.0.1:8", "the end of a tunnel"
    assert addresses.reachable("ipc:///x", "ipc:///y") == "ipc:///x"
