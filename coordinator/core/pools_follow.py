"""Lets the pools follow the load: what pool_policy.py decides is assigned, and said. Pure."""

import logging
from collections.abc import Iterable

from coordinator.core.pool_meter import PoolMeter
from coordinator.core.pool_policy import PoolPolicy, PoolTargets
from coordinator.core.pools import Pools, Size
from coordinator.core.request import Request, State

log = logging.getLogger(__name__)


class PoolsThatFollow:
    """Asks the policy, and assigns roles through ``pools``."""

    def __init__(self, pools: Pools, targets: PoolTargets) -> None:
        self._pools = pools
        self._meter = PoolMeter()
        self._policy = PoolPolicy(targets, self._meter.prefill_tok_s, self._meter.step_s)

    @property
    def why(self) -> str:
        """Why the pools changed last; "" before."""
        return self._policy.why

    def look(self, open_requests: Iterable[Request], now: float) -> None:
        """Measure, and change the pools by a worker if that is worth it. No-op while workers of a
        role are missing, or none may change its role."""
        workers = self._pools.live()
        queued = sum(r.num_tokens for r in open_requests if r.state is State.QUEUED)
        load = self._meter.load(workers, queued, now)
        if not (load.num_prefill and load.num_decode and self._pools.can_change()):
            return
        wanted = self._policy.decide(load, now)
        if wanted != load.num_prefill:
            log.info("pools: %s", self.why)
            self._pools.assign(Size(wanted, len(workers) - wanted))
