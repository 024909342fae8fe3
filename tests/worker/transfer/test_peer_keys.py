"""The keys of the sockets between workers."""

from __future__ import annotations

import pytest

from gt.errors import ProtocolError
from gt.wire import transport
from gt.worker.transfer.peer_keys import PeerKeys


def test_a_worker_is_reached_by_its_address_alone() -> None:
    """Its public key travels in it, before the place of its memory; the secret that all workers share proves the sender."""
    listening, sending = PeerKeys(), PeerKeys()
    listening.listening = transport.key_pair()
    address = listening.announce("tcp://10.0.0.2:7101") + "#memory/1/2/3"
    secret = transport.key_bytes(transport.key_pair().secret)
    for each in (listening, sending):
        each.shared(secret)
    place, keys = sending.for_peer(address)
    assert place == "tcp://10.0.0.2:7101"
    assert keys is not None
    assert keys.server == listening.listening.public
    assert listening._accepts(keys.public)
    assert not listening._accepts(transport.key_pair().public)


def test_before_the_secret_is_known_nobody_is_accepted() -> None:
    keys = PeerKeys()
    assert not keys._accepts(transport.key_pair().public)


def test_a_unix_socket_needs_no_keys() -> None:
    keys = PeerKeys()
    assert keys.check_for(None) is None
    assert keys.check_for("ipc:///x") is None
    assert keys.announce("ipc:///x") == "ipc:///x"
    keys.shared(None)
    assert keys.for_peer("ipc:///x#memory") == ("ipc:///x", None)


def test_what_is_no_key_is_refused() -> None:
    keys = PeerKeys()
    for secret in (b"short", "text", 5):
        with pytest.raises(ProtocolError, match="is no key"):
            keys.shared(secret)
    keys.shared(bytes(32))
    for public in ("", "zz", "00" * 31):
        if public:
            with pytest.raises(ProtocolError, match="no key of a worker"):
                keys.for_peer(f"tcp://10.0.0.2:1?curve={public}")
