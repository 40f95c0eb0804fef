"""The exchange memory of a group: a member's own, and that of the others, mapped while the group is
joined."""

from collections.abc import Callable, Sequence

import torch

from engine.spread.interface import MemberUnreachable
from engine.spread.memory import Exchange, ExchangeLayout
from transport.copy.memory import OwnMemory
from transport.wire.errors import PeerGone
from transport.wire.spread import MAX_MEMBERS, ExchangeExport


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


class GroupMemory:
    """``memory`` is exported; ``open_peer`` and ``close_peer`` are those of ``PeerMemory``. An
    engine has one, for steps of its own and to lend, which are captured for at most
    ``most_decoding`` decoding members. ``num_decoding`` members of the joined group decode; 0: none
    is joined. No step is under way where it is joined or left."""

    def __init__(
        self,
        layout: ExchangeLayout,
        memory: OwnMemory,
        open_peer: Callable[[str], int],
        close_peer: Callable[[int], None],
        most_decoding: int = MAX_MEMBERS,
    ) -> None:
        own = memory.allocate(layout.size_bytes)
        self._most_decoding = most_decoding
        self.exchange, self._memory = Exchange(layout, own), memory
        self._peers = PeerMemory(own.data_ptr(), open_peer, close_peer)
        self.num_decoding = 0

    @property
    def export(self) -> ExchangeExport:
        memory = self._memory
        return ExchangeExport(memory.kind, memory.handle, memory.size_bytes)

    @torch.inference_mode()
    def join(
        self, generation: int, place: int, handles: Sequence[str], num_lenders: int, limit_s: float
    ) -> None:
        """Be the member ``place`` of those whose memory has these handles, the own one included and
        those of lenders last. Raises MemberUnreachable, and is then in no group."""
        self.leave()
        if len(handles) - num_lenders > self._most_decoding:
            surplus = self._most_decoding - (place >= self._most_decoding)
            raise MemberUnreachable(
                surplus,
                f"this worker has graphs for at most {self._most_decoding} decoding members, by "
                "the GPUs that it sees",
            )
        addresses = self._peers.open(place, handles)
        self.exchange.join(generation, addresses, place, num_lenders=num_lenders, limit_s=limit_s)
        if self.exchange.control.is_cuda:
            # The others may write here as soon as they learn of this.
            torch.cuda.current_stream().synchronize()
        self.num_decoding = len(handles) - num_lenders

    @torch.inference_mode()
    def leave(self) -> None:
        """Unmap the others' memory."""
        if self.num_decoding:
            self.exchange.withdraw()
        self._peers.close()
        self.num_decoding = 0
