"""Settings of the serving core, by the room that they are for."""

from dataclasses import dataclass, field

from coordinator.core.pool_targets import PoolTargets


@dataclass(frozen=True)
class HubSettings:
    """Limits of waiting and of what may be open at a time."""

    heartbeat_s: float = 1.0
    dead_after_s: float = 10.0
    """A worker that is silent for this long is dead."""
    max_open: int = 16_384
    """Most open requests."""
    max_open_tokens: int = 500_000_000
    """Most tokens that the open requests may hold together."""
    request_timeout_s: float = 0.0
    """Limits a request's whole life, however well it proceeds; 0: no limit."""
    silence_timeout_s: float = 300.0
    """A request fails that has been at a worker for this long without any progress."""
    queue_timeout_s: float = 1_800.0
    """A request fails that has waited for a worker for this long."""
    targets: PoolTargets = field(default_factory=PoolTargets)
    """What requests shall keep: pools follow the load for it, and workers divide their GPUs."""
    pools_follow: bool = False
    """The pools follow the load; else they change by hand, if at all."""

    def __post_init__(self) -> None:
        if not self.heartbeat_s > 0:
            raise ValueError(f"heartbeat_s: {self.heartbeat_s} is not positive")
        if not self.dead_after_s >= 2 * self.heartbeat_s:
            raise ValueError(
                f"dead_after_s: {self.dead_after_s} is not two or more heartbeats of "
                f"{self.heartbeat_s}"
            )
        if self.max_open < 1:
            raise ValueError(f"max_open: {self.max_open} < 1")
        if self.max_open_tokens < 1:
            raise ValueError(f"max_open_tokens: {self.max_open_tokens} < 1")
        if not self.request_timeout_s >= 0:
            raise ValueError(f"request_timeout_s: {self.request_timeout_s} is negative; 0: none")
        if not self.silence_timeout_s > 0:
            raise ValueError(f"silence_timeout_s: {self.silence_timeout_s} is not positive")
        if not self.queue_timeout_s > 0:
            raise ValueError(f"queue_timeout_s: {self.queue_timeout_s} is not positive")


@dataclass(frozen=True)
class PlacementLimits:
    """How much work is placed at one worker."""

    max_tokens_ahead: int = 16_384
    """A prefill worker gets no more prompts while so many tokens that were placed there are not
    computed yet. So it has its next prompt before it needs it, however long both are."""
    max_tokens_ahead_generating: int = 65_536
    """Most prompt tokens placed at a worker that continues to decode, and not computed yet. Such a
    worker computes a burst in large batches only as far as it knows of it (prefill/limits.py)."""
    prefill_watermark: float = 0.9
    """A prefill worker gets no more prompts beyond this share of its pages."""

    def __post_init__(self) -> None:
        if self.max_tokens_ahead < 1:
            raise ValueError(f"max_tokens_ahead: {self.max_tokens_ahead} < 1")
        if self.max_tokens_ahead_generating < 1:
            raise ValueError(f"max_tokens_ahead_generating: {self.max_tokens_ahead_generating} < 1")
        if not 0.0 < self.prefill_watermark <= 1.0:
            raise ValueError(f"prefill_watermark: {self.prefill_watermark} not in (0, 1]")


@dataclass(frozen=True)
class RetryLimits:
    """When a request is retried, quarantined or given up."""

    max_faults: int = 4
    """A request with more faults fails."""
    max_losses: int = 8
    """A request that lost more workers fails, whatever it achieved between."""
    num_deaths: int = 2
    """A request is quarantined that was running on so many workers when they died."""
    pass_len: int = 32
    """Tokens without a death that end a quarantine, and reset the count of deaths."""
    wait_s: float = 30.0
    """How long a worker reserved for a quarantined request may finish its other requests; the
    remaining ones are retried on other workers."""

    def __post_init__(self) -> None:
        for name in ("num_deaths", "pass_len", "max_losses", "max_faults"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} < 1")
        if self.wait_s < 0:
            raise ValueError(f"wait_s: {self.wait_s} is negative")


@dataclass(frozen=True)
class BreakerSettings:
    """When a circuit breaker opens, how long it pauses, and how many probes may fail."""

    num_faults: int = 3
    window_s: float = 60.0
    """``num_faults`` faults within this time open a breaker."""
    pause_s: float = 1.0
    """The first pause before a probe; it doubles with each failed probe."""
    max_pause_s: float = 60.0
    max_failed_probes: int = 5
    """A worker is ended after so many failed probes in a row."""

    def __post_init__(self) -> None:
        if self.num_faults < 1:
            raise ValueError(f"num_faults: {self.num_faults} < 1")
        if self.window_s <= 0:
            raise ValueError(f"window_s: {self.window_s} is not positive")
        if not 0 < self.pause_s <= self.max_pause_s:
            raise ValueError(f"pause_s: {self.pause_s} not in (0, {self.max_pause_s}]")
        if self.max_failed_probes < 1:
            raise ValueError(f"max_failed_probes: {self.max_failed_probes} < 1")
