"""Lets the pools follow the load: what pool_policy.py decides is assigned, and said. Pure."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from coordinator.core.pool_meter import PoolMeter
from coordinator.core.pool_policy import PoolPolicy
from coordinator.core.pool_targets import PoolTargets
from coordinator.core.pools import Pools, Size

log = logging.getLogger(__name__)


class PoolsThatFollow:
    """Asks the policy, and assigns roles through ``pools``."""

    def __init__(self, pools: Pools, targets: PoolTargets, meter: PoolMeter) -> None:
        self._pools = pools
        self._targets = targets
        self._meter = meter
        self._policy = PoolPolicy(targets, meter)

    @property
    def why(self) -> str:
        """Why the pools changed last; "" before."""
        return self._policy.why

    def look(
        self, num_tokens_queued: int, now: float, asked: Iterable[tuple[float, float]] = ()
    ) -> None:
        """Measure, and change the pools by a worker if that is worth it. No-op while no worker
        decodes, or none may change its role. ``num_tokens_queued``: tokens of the prompts that wait
        for a worker. ``asked``: the seconds to the first token, and for each other one, that each
        open request asks for."""
        workers = self._pools.live()
        load = self._meter.load(workers, num_tokens_queued)
        if not (load.num_decode and self._pools.can_change()):
            return
        load = replace(load, targets=self._targets.strictest(asked))
        wanted = self._policy.decide(load, now)
        if wanted != load.num_prefill:
            log.info("pools: %s", self.why)
            self._pools.assign(Size(wanted, len(workers) - wanted))
