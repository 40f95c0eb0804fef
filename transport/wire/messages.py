"""The wire: every struct that crosses between coordinator and workers, nothing else.

One tagged union a direction. Workers (``FromWorker``) and the coordinator (``ToWorker``) talk
over one ZeroMQ connection a worker; prefill and decode workers never talk to each other, decode
only reads prefill's exported memory. Every frame carries ``PROTOCOL`` in front, compared before
anything is decoded (channel.py). A request's ``attempt`` rises each time it is placed anew;
what arrives about an older one is stale.

A request's way through the messages:

    coordinator ── Prefill ──► prefill worker ── Prefilled(first token, offer) ──► coordinator
    coordinator ── Decode(offer) ──► decode worker: pulls ── TransferDone ──► coordinator
    coordinator ── Release ──► prefill worker                decode worker ── Tokens … ──►

and with workers of role ``both``, which need no handoff:

    coordinator ── Generate ──► worker ── Prefilled(first token), Tokens … ──► coordinator
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.sampling import FinishReason, SamplingParams, StopRule
from transport.wire.token_ids import ID_BYTES

PROTOCOL = "baton/6"

Role = Literal["prefill", "decode", "colocated"]
MemoryKind = Literal["shm", "cuda-ipc"]

# Checked where a message is decoded: one number out of range from one worker would otherwise
# reach the arithmetic and the figures of all.
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Positive = Annotated[int, Meta(ge=1, lt=2**53)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Seconds = Annotated[float, Meta(gt=-1e9, lt=1e9)]


class _Wire(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class MemoryExport(_Wire, frozen=True):
    """One worker's cache memory, as a peer can open it.

    ``handle`` names a shared-memory segment, or is the hex of a CUDA IPC handle. The region's
    inside follows from layout and size alone (transport/copy/region.py).
    """

    kind: MemoryKind
    handle: str
    size_bytes: Positive
    layout: CacheLayout
    pools: PoolSize


class Offer(_Wire, frozen=True):
    """A finished prompt's pages and state, readable until released.

    Valid only while the exporter's epoch of ``state_slot`` equals ``epoch``, which
    the puller checks after its copy. ``num_tokens`` tokens are in the cache. ``digest`` hashes
    them in the mode that verifies every handoff, and is empty otherwise.
    """

    instance: str
    block_table: tuple[Count, ...]
    state_slot: Count
    epoch: int
    num_tokens: Positive
    digest: str = ""


class LogprobsOut(_Wire, frozen=True):
    """Natural-log probabilities: the sampled token's, and the most likely (id, logprob) pairs."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class TokenOut(_Wire, frozen=True):
    """One output token. ``index`` counts a request's output from 0, across attempts."""

    request_id: str
    attempt: int
    index: Count
    token_id: TokenId
    logprobs: LogprobsOut | None = None
    finish: FinishReason | None = None


class WorkerGauges(_Wire, frozen=True):
    """A worker's pools and queues at one moment."""

    free_pages: Count
    free_state_slots: Count
    running: Count = 0
    waiting: Count = 0
    offered: Count = 0
    retiring_slots: Count = 0
    stale_dropped: Count = 0
    accounting_error: str = ""


class XidCount(_Wire, frozen=True):
    """How often the driver has reported this error since the worker began to listen."""

    number: int
    times: int


class GpuHealth(_Wire, frozen=True):
    """What a worker's GPU says of itself. None: it does not offer the figure, and nobody guesses.

    ``slowdown_c`` is the temperature at which the hardware slows itself down. ``ecc_uncorrected``
    and ``nvlink_errors`` count since the driver was loaded; ``xids`` has those that occurred.
    """

    temperature_c: float | None = None
    slowdown_c: float | None = None
    power_w: float | None = None
    utilisation_pct: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    sm_clock_mhz: float | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    nvlink_errors: int | None = None
    xids: tuple[XidCount, ...] = ()


# ---- worker → coordinator


class Hello(_Wire, frozen=True, tag="hello"):
    """First message of a worker that has loaded: who it is, what it serves, what it exports.

    ``model`` is a digest of the checkpoint's configuration and tensors' names, shapes and
    dtypes: both ends of a handoff must serve the same. ``max_seq_len`` is the longest sequence
    the worker's pool can hold, in tokens. ``gpu`` is the UUID of its GPU, "" on a CPU.
    """

    instance: str
    role: Role
    model: str
    device: str
    pid: int
    max_seq_len: Positive
    max_running: Positive
    memory: MemoryExport
    gpu: str = ""


class Heartbeat(_Wire, frozen=True, tag="heartbeat"):
    """Sent every ``heartbeat_s`` from the worker's main loop, so a hung loop falls silent.

    ``held`` lists every (request, attempt) the worker has: the coordinator compares it with
    what it placed there, so a lost message cannot strand a request. ``gpu`` is None where no GPU
    can be asked. ``malformed_dropped`` counts the coordinator's frames that did not decode.
    """

    gauges: WorkerGauges
    held: tuple[tuple[str, int], ...] = ()
    gpu: GpuHealth | None = None
    malformed_dropped: Count = 0


class Prefilled(_Wire, frozen=True, tag="prefilled"):
    """A prompt is done. ``offer`` is None when nothing is to be handed off: its first token ended
    the request, or the request was to ``Generate`` and goes on where it is.

    ``wait_s`` from the order to its first chunk, ``prefill_s`` from there to its first token.
    """

    token: TokenOut
    offer: Offer | None
    wait_s: Seconds
    prefill_s: Seconds


class TransferDone(_Wire, frozen=True, tag="transfer-done"):
    """The puller has every byte, checked against the epoch; the offer may go.

    Durations, whose sum coordinator/record/handoff_stages.py explains: the order lay in the socket
    for ``in_socket_s`` at most; ``wait_memory_s`` until there was memory, ``launch_s`` to enqueue
    the copy, ``copy_s`` for the bytes alone, ``boundary_s`` for the rest until the loop saw it.
    """

    request_id: str
    attempt: int
    num_bytes: Count
    in_socket_s: Seconds = 0.0
    wait_memory_s: Seconds = 0.0
    launch_s: Seconds = 0.0
    copy_s: Seconds = 0.0
    boundary_s: Seconds = 0.0


class FirstStep(_Wire, frozen=True):
    """A sequence's first decode step at this worker is done, ``seconds`` after it landed."""

    request_id: str
    attempt: int
    seconds: Seconds


class Tokens(_Wire, frozen=True, tag="tokens"):
    """All new tokens of one decode step."""

    tokens: tuple[TokenOut, ...]
    first_steps: tuple[FirstStep, ...] = ()


FailureCode = Literal[
    "stale_offer", "peer_gone", "pull_timeout", "offer_expired", "preempted", "draining",
    "too_long", "not_finite", "digest_mismatch", "constraint_failed",
]  # fmt: skip


class Failed(_Wire, frozen=True, tag="failed"):
    """The worker gave up on a request and holds nothing of it any more.

    ``retry`` says whether placing it again can help (preempted, a stale offer) or not.
    """

    request_id: str
    attempt: int
    code: FailureCode
    message: str
    retry: bool


class PeerTested(_Wire, frozen=True, tag="peer-tested"):
    """A decode worker has tested the path from a peer it was told of (selftest.py).

    ``problem`` is empty when the pair may be used; else it says what was wrong, for people.
    """

    instance: str
    num_bytes: Count = 0
    seconds: Seconds = 0.0
    problem: str = ""


class Goodbye(_Wire, frozen=True, tag="goodbye"):
    """The worker leaves, holding nothing; or takes no new work when ``draining`` is set.

    ``unfit`` says why its GPU must compute nothing more for a while; "" if it is fit.
    """

    draining: bool = False
    unfit: str = ""


FromWorker = (
    Hello | Heartbeat | Prefilled | TransferDone | Tokens | Failed | PeerTested | Goodbye
)  # fmt: skip


# ---- coordinator → worker


class Welcome(_Wire, frozen=True, tag="welcome"):
    """The worker is in. It must be heard from every ``heartbeat_s``; either side takes the
    other for dead after ``dead_after_s`` of silence."""

    coordinator: str
    heartbeat_s: float
    dead_after_s: float


class Refused(_Wire, frozen=True, tag="refused"):
    """The worker may not join (or is fenced: taken for dead, its requests placed elsewhere)."""

    reason: str


class Alive(_Wire, frozen=True, tag="alive"):
    """The coordinator's heartbeat. An unknown sender means: say hello again."""

    coordinator: str


class PeerJoined(_Wire, frozen=True, tag="peer-joined"):
    """To decode workers: a prefill worker whose memory may be opened, once, and is to be tested."""

    instance: str
    memory: MemoryExport


class PeerLeft(_Wire, frozen=True, tag="peer-left"):
    """To decode workers: an exporter that is gone; close its mapping once no pull uses it."""

    instance: str


class _Order(_Wire, frozen=True):
    """Compute ``token_ids`` (packed: token_ids.py): the prompt, plus output already sent when
    resuming.

    ``num_prompt`` of them are the prompt, so the next token to sample has output index
    ``num_tokens - num_prompt``. ``arrival`` orders requests by their acceptance, whatever
    the attempt: when memory is short, the youngest gives way. ``http_id`` is its client's
    X-Request-Id, for the log.
    """

    request_id: str
    attempt: int
    arrival: int
    token_ids: bytes
    num_prompt: int
    sampling: SamplingParams
    stop: StopRule
    http_id: str = ""

    def __post_init__(self) -> None:
        if len(self.token_ids) % ID_BYTES:
            raise ValueError(f"token_ids: {len(self.token_ids)} bytes end within an id")


class Prefill(_Order, frozen=True, tag="prefill"):
    """Compute ``token_ids``, sample one token, and offer the cache."""


class Decode(_Order, frozen=True, tag="decode", kw_only=True):
    """Pull ``offer`` and go on. ``token_ids`` ends with a token the offer's cache lacks."""

    offer: Offer


class Generate(_Order, frozen=True, tag="generate"):
    """Compute ``token_ids`` and go on to the end, on this very worker."""


class Cancel(_Wire, frozen=True, tag="cancel"):
    """Drop everything held for the request, whichever attempt up to this one."""

    request_id: str
    attempt: int


class Release(_Wire, frozen=True, tag="release"):
    """The offer has landed or is void; ``epoch`` must still be its own."""

    request_id: str
    attempt: int
    epoch: int


ToWorker = (
    Welcome | Refused | Alive | PeerJoined | PeerLeft
    | Prefill | Decode | Generate | Cancel | Release
)  # fmt: skip


def encode(message: FromWorker | ToWorker) -> bytes:
    """MessagePack bytes of one message."""
    return _ENCODER.encode(message)


_ENCODER = msgspec.msgpack.Encoder()
