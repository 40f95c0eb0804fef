"""The messages between the coordinator and its workers: one tagged union for each direction.

Each worker has one ZeroMQ connection, to the coordinator. Prefill and decode workers send each
other nothing; a decode worker only reads a prefill worker's exported memory. Every frame begins
with ``PROTOCOL``, which is compared before the payload is decoded (channel.py). A request's
``attempt`` rises each time it is placed again; a message about an older attempt is stale.

The messages of a request:

    coordinator ── Prefill ──► prefill worker ── LastChunk ──► coordinator
    coordinator ── ExpectHandoff ──► a decode worker
                               prefill worker ── Prefilled(first token, offer) ──► coordinator
    coordinator ── Decode(offer) ──► decode worker: pulls ── TransferDone ──► coordinator
    coordinator ── Release ──► prefill worker                decode worker ── Tokens … ──►

and without a handoff, at a colocated worker, or at a decode worker while no prefill worker takes
work:

    coordinator ── Generate ──► worker ── Prefilled(first token), Tokens … ──► coordinator

A sequence that is being decoded moves to another worker by a handoff whose source decodes:

    coordinator ── Move ──► worker ── Tokens …, Settled(offer) ──► coordinator
    coordinator ── Decode(offer) ──► other worker: pulls ── TransferDone ──► coordinator
    coordinator ── Release ──► worker                other worker ── Tokens … ──►

Where no other worker can take it, ``Decode`` goes back to the worker that made the offer.

``PromptLogprobs`` come before ``Prefilled`` where the sampling parameters ask for them. Between
requests, ``PrefixesChanged`` lists the prefixes that a worker keeps for later prompts, and
``DropPrefix`` names a prefix that it must not keep. spread.py has the messages about spread groups.
"""

from typing import Literal

import msgspec

from transport.wire.fields import Count, Positive, Seconds, TokenId, WireStruct
from transport.wire.memory_export import MemoryExport
from transport.wire.offers import Offer, PrefixesChanged, PrefixName
from transport.wire.prompt_logprobs import PromptLogprobs
from transport.wire.reports import FirstStep, GpuHealth, LogprobsOut, WorkerGauges
from transport.wire.sampling import FinishReason, SamplingParams, StopRule
from transport.wire.spread import SpreadExport, SpreadGroup, SpreadJoined
from transport.wire.token_ids import ID_BYTES

PROTOCOL = "baton/23"

Role = Literal["prefill", "decode", "colocated"]
ReusedFrom = Literal["", "gpu", "host", "peer"]


class TokenOut(WireStruct, frozen=True):
    """One output token. ``index`` counts a request's output from 0, across attempts. ``drafts``:
    how many drafts of the sequence the step verified and accepted; set on the step's first
    token."""

    request_id: str
    attempt: int
    index: Count
    token_id: TokenId
    logprobs: LogprobsOut | None = None
    finish: FinishReason | None = None
    drafts: tuple[Count, Count] = (0, 0)


class Hello(WireStruct, frozen=True, tag="hello"):
    """The first message of a worker, once it has loaded its model.

    A worker begins with ``role``, and the coordinator may assign it ``other_roles`` later.
    ``model`` is a digest of the checkpoint's configuration and tensors' names, shapes and dtypes:
    both ends of a handoff must serve the same. ``max_seq_len`` is the longest sequence that the
    worker's pool can hold, in tokens. ``gpu`` is the UUID of its GPU, "" on a CPU. ``spread`` is
    None where it takes part in no spread steps (spread.py). ``draft_acceptance``: the probability
    with which it accepts drafts in a benchmark with random weights; None where drafts are verified.
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
    spread: SpreadExport | None = None
    other_roles: tuple[Role, ...] = ()
    draft_acceptance: float | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        """All roles that the worker can have."""
        return self.role, *self.other_roles


class Heartbeat(WireStruct, frozen=True, tag="heartbeat"):
    """A sign of life, sent every ``heartbeat_s`` from the worker's main loop: a loop that hangs
    sends none.

    ``held`` lists every (request, attempt) that the worker has. The coordinator compares it with
    what it placed there, and so finds lost messages. ``gpu`` is None without a GPU that can be
    read. ``malformed_dropped`` counts the coordinator's frames that did not decode.
    """

    gauges: WorkerGauges
    held: tuple[tuple[str, int], ...] = ()
    gpu: GpuHealth | None = None
    malformed_dropped: Count = 0


class LastChunk(WireStruct, frozen=True, tag="last-chunk"):
    """The worker launched the last chunk of a prompt that will be handed off: ``Prefilled`` follows
    in milliseconds, unless the request ends."""

    request_id: str
    attempt: int


class Prefilled(WireStruct, frozen=True, tag="prefilled"):
    """A prompt is computed. ``offer`` is None without a handoff: the first token ended the request,
    or the order was ``Generate`` and the same worker goes on.

    ``wait_s`` is from the order to the first chunk, ``prefill_s`` from there to the first token.
    ``num_reused`` tokens were not computed: they were ``reused`` from this worker's GPU (or a CPU
    worker's memory), from its host memory, or from a peer.
    """

    token: TokenOut
    offer: Offer | None
    wait_s: Seconds
    prefill_s: Seconds
    num_reused: Count = 0
    reused: ReusedFrom = ""


class Settled(WireStruct, frozen=True, tag="settled"):
    """The worker has sent every token of a sequence that is to move, and offers its cache: all its
    tokens but the last are there."""

    request_id: str
    attempt: int
    offer: Offer


class TransferDone(WireStruct, frozen=True, tag="transfer-done"):
    """The decode worker has every byte and has checked the epoch; the offer can be released.

    Durations (coordinator/record/record.py explains their sum): the order was in the socket
    for at most ``in_socket_s``; ``wait_memory_s`` until there was memory, ``launch_s`` to enqueue
    the copy, ``copy_s`` for the copy alone, ``boundary_s`` until the worker's loop saw its end.
    """

    request_id: str
    attempt: int
    num_bytes: Count
    in_socket_s: Seconds = 0.0
    wait_memory_s: Seconds = 0.0
    launch_s: Seconds = 0.0
    copy_s: Seconds = 0.0
    boundary_s: Seconds = 0.0


class Tokens(WireStruct, frozen=True, tag="tokens"):
    """All new tokens of one decode step."""

    tokens: tuple[TokenOut, ...]
    first_steps: tuple[FirstStep, ...] = ()


FailureCode = Literal[
    "stale_offer", "peer_gone", "pull_timeout", "offer_expired", "preempted", "draining",
    "too_long", "not_finite", "digest_mismatch", "constraint_failed",
]  # fmt: skip


class Failed(WireStruct, frozen=True, tag="failed"):
    """The worker could not serve a request and has freed all its memory.

    ``retry``: another attempt may succeed (as after a preemption or a stale offer). ``pulled``: the
    prefix, pulled from a peer, with which a ``not_finite`` request began.
    """

    request_id: str
    attempt: int
    code: FailureCode
    message: str
    retry: bool
    pulled: PrefixName | None = None


class PeerTested(WireStruct, frozen=True, tag="peer-tested"):
    """A decode worker has tested the path from a prefill worker (transport/copy/selftest.py).

    ``problem`` is empty when the pair may be used; else it says what was wrong.
    """

    instance: str
    num_bytes: Count = 0
    seconds: Seconds = 0.0
    problem: str = ""


class Goodbye(WireStruct, frozen=True, tag="goodbye"):
    """The worker leaves and has no requests; with ``draining`` it stays, but takes no new work, and
    waits to be ``Dismissed``.

    ``unfit`` says why its GPU must compute nothing more for a while; "" if it is fit.
    """

    draining: bool = False
    unfit: str = ""


FromWorker = (
    Hello | Heartbeat | PromptLogprobs | LastChunk | Prefilled | PrefixesChanged | Settled
    | TransferDone | Tokens | Failed | PeerTested | SpreadJoined | Goodbye
)  # fmt: skip


class Targets(WireStruct, frozen=True):
    """The time to the first token and the time of each further one that requests shall keep."""

    ttft_s: Seconds
    tpot_s: Seconds


class Welcome(WireStruct, frozen=True, tag="welcome"):
    """The worker has joined. Both ends send a heartbeat every ``heartbeat_s``, and consider the
    other dead after ``dead_after_s`` without a message. The worker tries to keep ``targets``."""

    coordinator: str
    heartbeat_s: float
    dead_after_s: float
    targets: Targets


class Refused(WireStruct, frozen=True, tag="refused"):
    """The worker may not join, or is fenced: it was considered dead, and its requests were retried
    on other workers."""

    reason: str


class Alive(WireStruct, frozen=True, tag="alive"):
    """The coordinator's heartbeat. A worker that joined another coordinator sends Hello again."""

    coordinator: str


class Dismissed(WireStruct, frozen=True, tag="dismissed"):
    """The answer to a draining worker's Goodbye, at once or later: nothing under way needs the
    worker, so it may end once it has no requests."""


class PeerJoined(WireStruct, frozen=True, tag="peer-joined"):
    """Open the memory of this worker, once, and test the path. A worker gets this for every worker
    that may hand sequences off or move them to it, and for every worker whose kept prefixes it may
    pull. ``hands_off``: prompts are computed there for this worker."""

    instance: str
    memory: MemoryExport
    hands_off: bool = False


class PeerLeft(WireStruct, frozen=True, tag="peer-left"):
    """This worker is gone; unmap its memory once no pull uses it."""

    instance: str


class _Order(WireStruct, frozen=True):
    """Compute ``token_ids`` (packed: token_ids.py): the prompt, plus output already sent when
    resuming.

    ``num_prompt`` of them are the prompt, so the next token to sample has output index
    ``num_tokens - num_prompt``. ``arrival`` orders requests by acceptance, also across attempts:
    when memory is short, the youngest is preempted. ``http_id`` is the client's X-Request-Id. The
    coordinator has the log-probabilities of ``num_scored`` tokens of the prompt already. Prefixes
    are shared only between orders of the same ``salt``. ``boundaries``: ascending numbers of tokens
    after which a later prompt is likely to differ; a state is kept at each.
    """

    request_id: str
    attempt: int
    arrival: int
    token_ids: bytes
    num_prompt: int
    sampling: SamplingParams
    stop: StopRule
    http_id: str = ""
    num_scored: Count = 0
    salt: str = ""
    boundaries: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        if len(self.token_ids) % ID_BYTES:
            raise ValueError(f"token_ids: {len(self.token_ids)} bytes end within an id")


class Prefill(_Order, frozen=True, tag="prefill", kw_only=True):
    """Compute ``token_ids``, sample one token, and offer the cache. ``prefix``: a prefix of them
    that a peer keeps, to be pulled if it is longer than the prefix that this worker keeps."""

    prefix: Offer | None = None


class Decode(_Order, frozen=True, tag="decode", kw_only=True):
    """Pull ``offer`` and decode. The last of ``token_ids`` is not in the offer's cache yet."""

    offer: Offer


class Move(WireStruct, frozen=True, tag="move"):
    """Decode the sequence no further, and answer with ``Settled``. Ignored if the sequence has
    ended."""

    request_id: str
    attempt: int


class ExpectHandoff(WireStruct, frozen=True, tag="expect"):
    """Prepare for a ``Decode`` that will probably follow in milliseconds. An idle worker stays
    awake, and a busy one launches no step ahead. Nothing is reserved, and it may not follow."""


class Generate(_Order, frozen=True, tag="generate", kw_only=True):
    """Compute ``token_ids`` and decode to the end, at a colocated worker, or at a decode worker
    while no prefill worker takes work. ``prefix`` as in ``Prefill``."""

    prefix: Offer | None = None


class Cancel(WireStruct, frozen=True, tag="cancel"):
    """Drop every attempt of the request up to this one, and free its memory."""

    request_id: str
    attempt: int


class Release(WireStruct, frozen=True, tag="release"):
    """The offer was pulled, or is void. Ignored unless the offer's epoch is ``epoch``."""

    request_id: str
    attempt: int
    epoch: int


class DropPrefix(WireStruct, frozen=True, tag="drop-prefix"):
    """Stop using this prefix and all that continue it. A peer that had pulled it from here computed
    NaN or infinity from it, but not without it."""

    prefix: PrefixName


ToWorker = (
    Welcome | Refused | Alive | Dismissed | PeerJoined | PeerLeft | SpreadGroup
    | Prefill | ExpectHandoff | Decode | Generate | Move | Cancel | Release | DropPrefix
)  # fmt: skip


def encode(message: FromWorker | ToWorker) -> bytes:
    """MessagePack bytes of one message."""
    return _ENCODER.encode(message)


_ENCODER = msgspec.msgpack.Encoder()
