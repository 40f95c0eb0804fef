"""The settings of the store, and what it counts."""

from dataclasses import dataclass

from coordinator.record import keys


@dataclass(frozen=True)
class StoreLimits:
    """``batch_window_s`` is how late a record may be for the sake of its batch;
    ``end_wait_s`` is how long the end of a response may wait for its record;
    ``max_ended`` bounds the records kept of requests that have ended, beside those still open."""

    batch_window_s: float = 0.01
    end_wait_s: float = 0.1
    max_batch: int = 64
    call_timeout_s: float = 2.0
    start_timeout_s: float = 1.0
    heartbeat_s: float = 2.0
    presence_ttl_s: float = keys.PRESENCE_TTL_S
    retain_s: float = 300.0
    max_ended: int = 20_000
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0


@dataclass
class StoreCounters:
    """Since the start. ``superseded``: Redis already had the record, or a newer one."""

    writes: int = 0
    superseded: int = 0
    failures: int = 0
    reconnects: int = 0
    rewrites: int = 0
    lost_failed: int = 0
