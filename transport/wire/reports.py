"""Parts of workers' messages: gauges and GPU health of heartbeats, details of tokens."""

from typing import Annotated

from msgspec import Meta

from transport.wire.fields import Count, Seconds, WireStruct
from transport.wire.spread import SpreadCounts

ByPosition = Annotated[tuple[Count, ...], Meta(max_length=16)]


class DraftCounts(WireStruct, frozen=True):
    """Counts of a worker's drafts since it started.

    ``num_steps`` counts a decode step once for each sequence in it. ``verified`` and ``accepted``
    count drafts by position, the first draft's first. ``num_drafts``: how many drafts a step makes
    for each sequence now.
    """

    num_steps: Count = 0
    verified: ByPosition = ()
    accepted: ByPosition = ()
    num_drafts: Count = 0

    def __post_init__(self) -> None:
        if len(self.verified) != len(self.accepted):
            raise ValueError(f"{len(self.verified)} positions verified, {len(self.accepted)} not")


class PrefixCounts(WireStruct, frozen=True):
    """Counts of a worker's prefix cache since it started, and what it holds now.

    ``queried`` tokens of prompts were looked up, and ``reused_gpu``, ``reused_host`` and
    ``reused_peer`` of them found. Each prompt that computed more than 256 tokens counts once in
    ``missed_new`` (no earlier prompt began like this), ``missed_no_state`` (an earlier prompt did,
    but no state was kept where they part) or ``missed_evicted`` (that state was evicted).
    ``evicted`` counts evicted prefixes. ``num_kept`` prefixes hold ``pages_kept`` pages that no
    running request has, and ``host_bytes`` of ``host_size_bytes`` of host memory.
    """

    queried: Count = 0
    reused_gpu: Count = 0
    reused_host: Count = 0
    reused_peer: Count = 0
    missed_new: Count = 0
    missed_no_state: Count = 0
    missed_evicted: Count = 0
    evicted: Count = 0
    evicted_host: Count = 0
    num_kept: Count = 0
    pages_kept: Count = 0
    num_kept_host: Count = 0
    host_bytes: Count = 0
    host_size_bytes: Count = 0


MANY_TOKENS = 4_096
"""A batch of fewer tokens says little about the speed of a busy worker: a short prompt alone takes
as long as several together."""


class PromptCounts(WireStruct, frozen=True):
    """Tokens of the batches of at least ``MANY_TOKENS`` of prompts that a worker has computed since
    it started, and how long its device took for these."""

    num_tokens: Count = 0
    seconds: Seconds = 0.0


class WorkerGauges(WireStruct, frozen=True):
    """A worker's pages, state slots and queues at one moment. Memory that only kept prefixes hold
    counts as free. ``shared_pages``: how many more pages its sequences would hold without
    sharing. ``steps_share``: the multiprocessors that steps have beside the prompts that are
    computed at the same time; 0: there are none."""

    free_pages: Count
    free_state_slots: Count
    shared_pages: Count = 0
    running: Count = 0
    waiting: Count = 0
    offered: Count = 0
    retiring_slots: Count = 0
    stale_dropped: Count = 0
    accounting_error: str = ""
    steps_share: Count = 0
    prompts: PromptCounts = PromptCounts()
    drafts: DraftCounts = DraftCounts()
    prefix: PrefixCounts = PrefixCounts()
    spread: SpreadCounts = SpreadCounts()


class XidCount(WireStruct, frozen=True):
    """How often the driver has reported this error since the worker started."""

    number: int
    times: int


class GpuHealth(WireStruct, frozen=True):
    """The last reading of a worker's GPU. None: the GPU or driver does not report the figure.

    ``slowdown_c`` is the temperature at which the hardware slows down. ``ecc_uncorrected``
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


class LogprobsOut(WireStruct, frozen=True):
    """Log-probabilities of an output token: natural logarithms for the sampled token, and for the
    most likely tokens as (id, logprob) pairs."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class FirstStep(WireStruct, frozen=True):
    """A sequence's first decode step at this worker is done, ``seconds`` after its transfer."""

    request_id: str
    attempt: int
    seconds: Seconds
