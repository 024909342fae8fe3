"""The keys of the sockets between workers: on TCP a worker takes pieces only from workers of its own service.

Each worker has a key pair for its listening socket, whose public part is in the address that the dispatcher hands to the
others. They prove that they are workers with a secret that the dispatcher has given to all workers of the service, and to
nobody else. On a Unix socket the folder's permissions do this.
"""

from __future__ import annotations

from typing import Final

from gt.errors import ProtocolError
from gt.wire import transport
from gt.wire.transport import CurveKeys, KeyCheck

MARK: Final = "?curve="
"""What precedes the public key in an address."""


class PeerKeys:
    """The keys by which one worker knows the others, and they know it."""

    def __init__(self) -> None:
        self.listening: CurveKeys | None = None
        self.check: KeyCheck | None = None
        self.common: CurveKeys | None = None
        """The pair of all workers of this service."""

    def check_for(self, listen: str | None) -> KeyCheck | None:
        """What guards the socket that listens there; None for a Unix socket."""
        if listen is not None and listen.startswith("tcp://"):
            self.listening = transport.key_pair()
            self.check = KeyCheck(self.listening.secret, self._accepts)
        return self.check

    def _accepts(self, key: str) -> bool:
        """Whether a key is the workers'; called by another thread, before the dispatcher has said which that is too."""
        common = self.common
        return common is not None and key == common.public

    def announce(self, address: str) -> str:
        """The address at which others reach this worker, with its public key if it has one."""
        return (
            address if self.listening is None else f"{address}{MARK}{transport.key_bytes(self.listening.public).hex()}"
        )

    def shared(self, secret: object) -> None:
        """The dispatcher has said the workers' secret. Raises `ProtocolError` if it is none."""
        if secret is None:
            return
        if not isinstance(secret, bytes) or len(secret) != transport.KEY_BYTES:
            raise ProtocolError("the secret of a service's workers is no key")
        self.common = transport.key_pair_of(secret)

    def for_peer(self, address: str) -> tuple[str, CurveKeys | None]:
        """Where another worker listens, and the keys to connect with. Raises `ProtocolError` if its key is none."""
        place, _, public = address.partition("#")[0].partition(MARK)
        if not public or self.common is None:
            return place, None
        try:
            server = transport.key_text(bytes.fromhex(public))
        except ValueError:
            raise ProtocolError(f"no key of a worker: {public[:80]!r}") from None
        return place, self.common._replace(server=server)
