"""The exchange memory of a group's other members, mapped while the group is joined."""

from collections.abc import Callable, Sequence

from engine.spread.interface import MemberUnreachable
from transport.wire.errors import PeerGone


class PeerMemory:
    """``open_peer`` and ``close_peer`` map a member's memory by its handle
    (transport/copy/cuda.py)."""

    def __init__(
        self, own_address: int, open_peer: Callable[[str], int], close_peer: Callable[[int], None]
    ) -> None:
        self._own_address, self._open_peer, self._close_peer = own_address, open_peer, close_peer
        self._opened: list[int] = []

    def open(self, place: int, handles: Sequence[str]) -> list[int]:
        """The addresses of all members' memory, the own one at ``place``. Raises MemberUnreachable,
        and has then nothing open."""
        assert not self._opened
        addresses = []
        for i, handle in enumerate(handles):
            if i == place:
                addresses.append(self._own_address)
                continue
            try:
                self._opened.append(self._open_peer(handle))
            except PeerGone as error:
                self.close()
                raise MemberUnreachable(i, str(error)) from error
            addresses.append(self._opened[-1])
        return addresses

    def close(self) -> None:
        while self._opened:
            self._close_peer(self._opened.pop())
