"""Ray Serve's hook for autoscaling: decides how many nodes are wanted.

Ray bounds the answer by ``min_replicas`` and ``max_replicas``, and waits ``upscale_delay_s`` and
``downscale_delay_s`` before it follows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RUNNING, QUEUED = "baton_requests_running", "baton_requests_queued"
"""Metrics that a node reports (node.py): requests with a worker, and requests that wait for one."""


def load_of(metrics: str) -> dict[str, float]:
    """``RUNNING`` and ``QUEUED`` of a node's Prometheus text.

    >>> load_of("baton_requests_queued 3.0\\nbaton_requests_running 7.0\\n")
    {'baton_requests_running': 7.0, 'baton_requests_queued': 3.0}
    """
    values = dict(line.rpartition(" ")[::2] for line in metrics.splitlines())
    return {name: float(values.get(name, 0)) for name in (RUNNING, QUEUED)}


@dataclass(frozen=True)
class NodesForLoad:
    """Wants enough nodes for ``running_per_node`` running and ``queued_per_node`` queued requests
    on each. Raises ValueError that names the setting."""

    running_per_node: float = 256.0
    queued_per_node: float = 16.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name}: must be above 0 requests, not {value}")

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of nodes for Ray's AutoscalingContext, and the policy's state: none."""
        running = self._total(context, RUNNING)
        queued = self._total(context, QUEUED) + (context.total_queued_requests or 0.0)
        return self.wanted(running, queued), {}

    def wanted(self, running: float, queued: float) -> int:
        """The number of nodes for this load.

        >>> NodesForLoad(running_per_node=256, queued_per_node=16).wanted(running=300, queued=5)
        2
        """
        nodes = max(running / self.running_per_node, queued / self.queued_per_node)
        return max(1, math.ceil(nodes))

    def _total(self, context: Any, name: str) -> float:
        """Sum over the nodes that have reported; Ray averages each over its look-back period."""
        reported: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        return sum(reported.get(name, {}).values())
