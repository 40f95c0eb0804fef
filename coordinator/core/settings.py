"""Settings of the serving core."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HubSettings:
    """``dead_after_s`` of silence makes a worker dead; ``max_open`` requests are open at a time,
    and hold ``max_open_tokens`` tokens.

    A request fails that has waited for a worker for ``queue_timeout_s``, or is at one without any
    progress for ``silence_timeout_s``. ``request_timeout_s`` limits all of it, however well it goes
    on; 0: nothing does.
    """

    heartbeat_s: float = 1.0
    dead_after_s: float = 10.0
    max_open: int = 16_384
    max_open_tokens: int = 500_000_000
    request_timeout_s: float = 0.0
    silence_timeout_s: float = 300.0
    queue_timeout_s: float = 1_800.0

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
