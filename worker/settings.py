"""The settings of a worker beside its engine's: frozen, checked once."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from decode.spread_policy import DEFAULT as SPREAD
from decode.spread_policy import require_spread
from decode.spread_table import StepTable
from engine.cache.prefix_policy import MIN_SAVED_TOKENS
from engine.config import EngineConfig
from prefill.limits import RoundLimits
from transport.wire.channel_keys import ChannelKeys
from transport.wire.layout import CHUNK_ALIGNMENT
from transport.wire.messages import Role
from worker.capabilities import Capabilities, capabilities_of
from worker.gpu_locks.folder import DEFAULT
from worker.gpu_locks.marks import UNFIT_S

MAX_CLAIM_TIMEOUT_S = 86_400.0
MAX_STALL_TIMEOUT_S = 86_400.0


@dataclass(frozen=True)
class HandoffSettings:
    """Settings of the handoff. ``offer_ttl_s``: how long an offer may wait for a decode worker.
    ``pull_timeout_s``: how long a copy, and the wait for its memory, may take. ``verify``: compare
    a digest of every handoff."""

    offer_ttl_s: float = 600.0
    pull_timeout_s: float = 10.0
    verify: bool = False

    def __post_init__(self) -> None:
        for name in ("offer_ttl", "pull_timeout"):
            value = getattr(self, f"{name}_s")
            if not value > 0:
                raise ValueError(f"{name}: {value} is not positive")


@dataclass(frozen=True)
class PrefixCacheSettings:
    """Settings of the prefix cache. ``enabled``: prefixes are kept and looked up. ``host_bytes``:
    pinned host memory for prefixes that the device evicts; 0: no host tier. A state is kept only if
    it saves a later prompt at least ``min_saved_tokens`` tokens."""

    enabled: bool = True
    host_bytes: int = 0
    min_saved_tokens: int = MIN_SAVED_TOKENS

    def __post_init__(self) -> None:
        if self.min_saved_tokens < CHUNK_ALIGNMENT:
            raise ValueError(f"min_saved_tokens: {self.min_saved_tokens} < {CHUNK_ALIGNMENT}")
        if self.host_bytes < 0:
            raise ValueError(f"host_cache: {self.host_bytes} bytes is negative")


@dataclass(frozen=True)
class ServingSettings:
    """The settings of a worker's rounds. ``instance``: the id of this start of the process.
    ``lookahead``: how many steps may be launched before the oldest one's tokens are processed. The
    worker waits without sleep for an announced handoff, for at most ``awake_s``."""

    instance: str
    capabilities: Capabilities
    limits: RoundLimits
    handoff: HandoffSettings = field(default_factory=HandoffSettings)
    prefix_cache: PrefixCacheSettings = field(default_factory=PrefixCacheSettings)
    lookahead: int = 0
    awake_s: float = 0.0


def host_bytes(gigabytes: float) -> int:
    """Bytes of ``gigabytes`` GB of 10^9 bytes. Raises ValueError."""
    if not 0 <= gigabytes < math.inf:
        raise ValueError(f"host_cache: {gigabytes} GB is negative or not finite")
    return int(gigabytes * 1e9)


@dataclass(frozen=True)
class WorkerSettings:
    """All settings of a worker.

    ``lookahead``: how many steps may be launched before the oldest one's tokens are processed, 0 or
    1 (options.LOOKAHEAD). ``threads``: torch's threads; 0: torch chooses. ``gpu``: one GPU
    (engine/gpu.py); "": any free one. ``claim_timeout_s``: how long to wait for a GPU; 0: without a
    limit. ``gpu_lock_dir``: the folder in which all workers of the node lock their GPUs.
    ``unfit_gpu_s``: how long no worker gets a GPU that reported a critical Xid. ``channel_keys``:
    the keys of a coordinator that has a secret. ``stall_timeout_s``: see stall.py. ``speculate``,
    ``spread``, ``spread_table``: see speculation.py, spread_policy.py, spread_table.py in decode/.
    ``spread_trials``: without a table, time steps while the group is idle (spread/trials.py).
    ``any_role``: the coordinator may assign prefill or decode; ``role`` is the first one.
    """

    role: Role
    coordinator: str
    engine: EngineConfig
    limits: RoundLimits
    handoff: HandoffSettings = field(default_factory=HandoffSettings)
    lookahead: int = 0
    threads: int = 0
    drain_timeout_s: float = 30.0
    gpu: str = ""
    claim_timeout_s: float = 60.0
    channel_keys: ChannelKeys | None = None
    stall_timeout_s: float = 60.0
    gpu_lock_dir: Path = DEFAULT
    unfit_gpu_s: float = UNFIT_S
    speculate: str = "auto"
    spread: str = SPREAD
    spread_table: StepTable | None = None
    spread_trials: bool = True
    prefix_cache: PrefixCacheSettings = field(default_factory=PrefixCacheSettings)
    any_role: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """What a worker of this role does."""
        return capabilities_of(self.role, any_role=self.any_role)

    def serving(self, instance: str, awake_s: float) -> ServingSettings:
        """The settings of the rounds of one start of the worker."""
        return ServingSettings(
            instance, self.capabilities, self.limits, self.handoff, self.prefix_cache,
            self.lookahead, awake_s,
        )  # fmt: skip

    def __post_init__(self) -> None:
        require_spread(self.spread)
        if not self.coordinator:
            raise ValueError("coordinator: no endpoint given, e.g. tcp://127.0.0.1:5555")
        capabilities_of(self.role, any_role=self.any_role)  # raises ValueError
        if self.lookahead not in (0, 1):
            raise ValueError(f"lookahead: {self.lookahead} is neither 0 nor 1")
        if self.threads < 0:
            raise ValueError(f"threads: {self.threads} is negative")
        if not self.drain_timeout_s >= 0:
            raise ValueError(f"drain_timeout_s: {self.drain_timeout_s} is not 0 or more")
        if not 0 <= self.claim_timeout_s <= MAX_CLAIM_TIMEOUT_S:
            most = f"from 0 to {MAX_CLAIM_TIMEOUT_S:g}"
            raise ValueError(f"claim_timeout_s: {self.claim_timeout_s} is not {most}")
        if not 0 <= self.stall_timeout_s <= MAX_STALL_TIMEOUT_S:
            most = f"from 0 to {MAX_STALL_TIMEOUT_S:g}"
            raise ValueError(f"stall_timeout_s: {self.stall_timeout_s} is not {most}")
        if not 0 < self.unfit_gpu_s < math.inf:
            raise ValueError(f"unfit_gpu_s: {self.unfit_gpu_s} is not positive and finite")
