"""Departures: which draining workers may end now. Pure.

An idle worker that drains ends as soon as it is dismissed. The last one that decodes stays while a
prefill worker, which drains too, computes or offers a prompt: without it the prompt would wait for
a decode worker until its own worker's drain ends. Workers that are stopped together say so within
``TOGETHER_S``, in any order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from coordinator.core.request import Request, State
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker

TOGETHER_S = 1.0
"""How long the last worker that decodes stays for prompts at prefill workers that do not drain."""


class Departures:
    """Selects the workers to be dismissed. ``requests`` are the open ones."""

    def __init__(
        self,
        registry: Registry,
        requests: Mapping[str, Request],
        monotonic: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._requests = requests
        self._monotonic = monotonic

    def due(self) -> Iterator[Worker]:
        """The draining workers that nothing needs, each once."""
        for worker in self._registry.all():
            idle = worker.draining and not worker.load.requests
            if idle and not worker.dismissed and not self._is_needed(worker):
                yield worker

    def _is_needed(self, worker: Worker) -> bool:
        if worker.role == "prefill" or self._registry.taking("decode"):
            return False
        exporters = list(self._exporters(self._requests.values()))
        together = self._monotonic() - worker.drains_since < TOGETHER_S
        return any(together or exporter.draining for exporter in exporters)

    def _exporters(self, requests: Iterable[Request]) -> Iterator[Worker]:
        """The prefill worker of each request for which no decode worker has been chosen."""
        for request in requests:
            if request.state in (State.PREFILLING, State.HANDOFF) and not request.decode_worker:
                exporter = self._registry.get(request.prefill_worker)
                if exporter is not None and exporter.role == "prefill":
                    yield exporter
