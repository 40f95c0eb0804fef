"""The error tree shared by every service.

BatonError
├── WireError            a message cannot be trusted;
│   ├── ProtocolMismatch     the two ends speak different wire versions;
│   ├── LayoutMismatch       the two ends shape their caches differently;
│   ├── RoleMismatch         a worker's role cannot be mixed with the other workers' roles;
│   └── MalformedMessage     bytes do not decode to a known struct;
├── PeerError            another process's exported memory is faulty;
│   ├── PeerGone             it can no longer be opened;
│   └── StaleEpoch           the state slot was given to another sequence during the copy;
├── ExportLost           peers cannot open this process's memory any more;
├── SharedMemoryFull     shared memory has no room for this process's cache;
├── ChannelRefused       the other end of the channel has another secret;
├── DeadlineExceeded     a wait took too long: who waited, for what, how long, what arrived;
└── PoolExhausted        more pages or state slots were asked for than are free.
"""


class BatonError(Exception):
    """Base of every error that Baton raises on purpose."""


class WireError(BatonError):
    """A message that cannot be trusted."""


class ProtocolMismatch(WireError):
    """Two ends of a channel speak different versions of the wire."""

    def __init__(self, *, ours: str, theirs: str, peer: str) -> None:
        super().__init__(f"wire version mismatch: this process speaks {ours}, {peer} {theirs}")
        self.ours, self.theirs = ours, theirs


class LayoutMismatch(WireError):
    """Two ends of a handoff shape their caches differently."""


class RoleMismatch(WireError):
    """A worker's role cannot be mixed with those of the other workers (split and colocated)."""


class MalformedMessage(WireError):
    """Bytes that do not decode to a struct of this channel."""


class ExportLost(BatonError):
    """Peers cannot open this process's exported memory any more."""


class SharedMemoryFull(BatonError):
    """Shared memory has no room for this process's region now."""


class ChannelRefused(BatonError):
    """The other end of the channel has another secret."""


class PeerError(BatonError):
    """Another process's exported memory is faulty."""


class PeerGone(PeerError):
    """The exporter is dead, so its memory cannot be opened any more."""


class StaleEpoch(PeerError):
    """The exporter gave the state slot to another sequence; what was copied is void."""


class DeadlineExceeded(BatonError):
    """A wait that reached its deadline."""

    def __init__(self, *, who: str, waited_for: str, after_s: float, got: str) -> None:
        super().__init__(f"{who} waited {after_s:.1f} s for {waited_for}; got {got}")


class PoolExhausted(BatonError):
    """More pages or state slots were asked for than are free."""
