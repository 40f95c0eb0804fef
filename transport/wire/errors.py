"""The error tree shared by every service.

BatonError
├── WireError            what arrived cannot be trusted
│   ├── ProtocolMismatch     the two ends speak different wire versions
│   ├── LayoutMismatch       the two ends shape their caches differently
│   ├── RoleMismatch         a worker whose role does not go with those already here
│   └── MalformedMessage     bytes that do not decode to a known struct
├── PeerError            another process's memory
│   ├── PeerGone             its memory can no longer be opened
│   └── StaleEpoch      the slot was given to somebody else meanwhile
├── ExportLost           peers cannot open this process's memory any more
├── SharedMemoryFull     no room for this process's cache where peers could open it
├── ChannelRefused       the other end of the channel does not share our secret
├── DeadlineExceeded     who waited, for what, for how long, what arrived
└── PoolExhausted        pages or state slots asked for beyond what is free
"""


class BatonError(Exception):
    """Base of every error this system raises on purpose."""


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
    """A worker whose role does not go with those of the workers already here."""


class MalformedMessage(WireError):
    """Bytes that do not decode to a struct of this channel."""


class ExportLost(BatonError):
    """Peers cannot open this process's exported memory any more."""


class SharedMemoryFull(BatonError):
    """Shared memory has no room for this process's region now."""


class ChannelRefused(BatonError):
    """The other end of the channel does not share our secret."""


class PeerError(BatonError):
    """A fault of another process's exported memory."""


class PeerGone(PeerError):
    """The exporter is dead, so its memory cannot be opened any more."""


class StaleEpoch(PeerError):
    """The exporter gave the state slot to another sequence; what was copied is void."""


class DeadlineExceeded(BatonError):
    """A wait that ended without what it waited for."""

    def __init__(self, *, who: str, waited_for: str, after_s: float, got: str) -> None:
        super().__init__(f"{who} waited {after_s:.1f} s for {waited_for}; got {got}")


class PoolExhausted(BatonError):
    """More pages or state slots were asked for than are free."""
