"""What ``/status`` says of a worker that may compute steps together with others. Pure."""

from coordinator.core.contract import SpreadMode, SpreadStatus
from coordinator.core.workers.meters import SpreadMeter


def spread_status(meter: SpreadMeter, members: tuple[str, ...], left_out_s: float) -> SpreadStatus:
    """``members`` are those of its group; it is left out of all for ``left_out_s`` seconds."""
    recent = meter.recent
    num_steps, num_local = recent.num_steps, recent.num_local
    mode: SpreadMode = "spread" if meter.growth.num_steps else "local"
    if not members:
        mode = "left out" if left_out_s > 0 else "alone"
    return SpreadStatus(
        mode=mode,
        members=members,
        share=num_steps / (num_steps + num_local) if num_steps + num_local else None,
        step_ms=recent.spread_ms / num_steps if num_steps else None,
        local_step_ms=recent.local_ms / num_local if num_local else None,
        aborted=recent.num_aborted,
        wait_ms={name: ms / num_steps for name, ms in recent.waits_ms} if num_steps else {},
        within_ms={n: us / 1e3 / num_steps for n, us in recent.within_us} if num_steps else {},
        saved_ms=recent.saved_us / 1e3 / num_steps if num_steps else None,
        late=dict(recent.late),
        left_out_s=left_out_s,
    )
