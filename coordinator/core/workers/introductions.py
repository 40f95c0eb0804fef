"""Which worker opens whose memory, and when workers are told. Pure.

decode workers               that of every prefill worker, for handoffs
workers that compute prompts that of every other worker that keeps prefixes, to pull them
"""

from collections.abc import Callable

from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import PeerJoined, PeerLeft, ToWorker


class Introductions:
    """Tells workers of their peers. ``send`` gives a worker a message."""

    def __init__(self, registry: Registry, send: Callable[[str, ToWorker], None]) -> None:
        self._registry = registry
        self._send = send

    def joined(self, worker: Worker) -> None:
        """The worker and its peers learn of each other."""
        for other in self._registry.all():
            if _pulls_handoffs(other, worker) or _pulls_prefixes(other, worker):
                self._introduce(worker, to=other)
            if _pulls_handoffs(worker, other) or _pulls_prefixes(worker, other):
                self._introduce(other, to=worker)

    def keeps_prefixes(self, worker: Worker) -> None:
        """The worker has said so for the first time since it joined."""
        worker.keeps_prefixes = True
        for other in self._registry.all():
            if _pulls_prefixes(other, worker):
                self._introduce(worker, to=other)

    def left(self, worker: Worker) -> None:
        """Those that were told of the worker unmap its memory."""
        for other in self._registry.all():
            if _pulls_handoffs(other, worker) or _pulls_prefixes(other, worker):
                self._send(other.instance, PeerLeft(worker.instance))

    def _introduce(self, worker: Worker, *, to: Worker) -> None:
        self._send(to.instance, PeerJoined(worker.instance, worker.hello.memory))


def _pulls_handoffs(puller: Worker, worker: Worker) -> bool:
    return (puller.hello.role, worker.hello.role) == ("decode", "prefill")


def _pulls_prefixes(puller: Worker, worker: Worker) -> bool:
    return worker.keeps_prefixes and puller.hello.role != "decode" and puller is not worker
