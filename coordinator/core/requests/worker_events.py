"""What follows when a worker joins, tests a peer, says what it has, drains or is lost. Pure.

Each public method is one event, whose effects are carried out before it returns, as in
lifecycle.py. Whatever changes which workers may take requests places those that wait.
"""

from collections.abc import Callable

from coordinator.core.effects import Outbox
from coordinator.core.placement.dispatcher import Dispatcher
from coordinator.core.requests.attempts import Attempts
from coordinator.core.requests.faults import Faults
from coordinator.core.requests.trials import Trials
from coordinator.core.workers.introductions import Introductions
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Cancel, PeerTested
from transport.wire.offers import PrefixesChanged


class WorkerEvents:
    """Events of the workers in ``registry``; ``stale_dropped`` counts messages about workers that
    have left. ``monotonic`` is the lifecycle's."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: Dispatcher,
        attempts: Attempts,
        faults: Faults,
        trials: Trials,
        outbox: Outbox,
        monotonic: Callable[[], float],
    ) -> None:
        self.stale_dropped = 0
        self._registry = registry
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._faults = faults
        self._trials = trials
        self._outbox = outbox
        self._monotonic = monotonic
        self._introductions = Introductions(registry, outbox.send)

    def joined(self, instance: str) -> None:
        """A worker has just joined: tell the peers about each other, give it work."""
        worker = self._registry.get(instance)
        if worker is None:
            return
        with self._outbox:
            self._introductions.joined(worker)
            self._dispatcher.run()

    def peer_tested(self, instance: str, message: PeerTested) -> None:
        """A worker has tested the path from another one, or failed to."""
        puller = self._registry.get(instance)
        if puller is None or self._registry.get(message.instance) is None:
            self.stale_dropped += 1
            return
        pairs = self._registry.pairs_of(puller)
        pairs.report(message.instance, instance, message.problem, self._monotonic())
        with self._outbox:
            self._dispatcher.run()

    def prefixes_changed(self, instance: str, message: PrefixesChanged) -> None:
        """What a worker keeps of earlier requests."""
        worker = self._registry.require(instance)
        self._registry.kept.change(instance, message)
        if not worker.keeps_prefixes:
            with self._outbox:
                self._introductions.keeps_prefixes(worker)

    def reconcile(self, worker: Worker, held: set[tuple[str, int]], heartbeat_s: float) -> None:
        """Compare what a worker says it holds with what was placed there: nothing may be lost
        with a message, and nothing kept for a request that is over.

        An order may cross a heartbeat, and the next one too: it comes just after the worker has
        read its messages, and a long step follows. But the worker reads them all between any two
        heartbeats. What was sent before the last but one was here had come when the last one went
        out, and so was read before this one.
        """
        last_but_one, _ = worker.beats
        # Heartbeats that had queued up may come at any pace while we catch up.
        sent_before = min(last_but_one, self._monotonic() - 3 * heartbeat_s)
        with self._outbox:
            for request_id, attempt in held:
                known = worker.load.requests.get(request_id)
                if known is None or known.attempt > attempt:
                    self._outbox.send(worker.instance, Cancel(request_id, attempt))
            for request in list(worker.load.requests.values()):
                missing = (request.request_id, request.attempt) not in held
                if missing and request.assigned_at < sent_before:
                    request.failed_at = worker.instance
                    self._faults.failed(request, worker.instance, "lost_at_worker")
                    message = f"{worker.instance} no longer has it"
                    self._attempts.retry(request, "lost_at_worker", message)
            worker.note_beat(self._monotonic(), heartbeat_s)
            self._dispatcher.run()

    def drain(self, worker: Worker) -> None:
        """It takes no new work; others may get what waits for it."""
        with self._outbox:
            worker.draining = True
            self._dispatcher.run()

    def lost(self, instance: str, *, died: bool = True) -> None:
        """It died or fell silent, or, not ``died``, left or was sent away. A pull from a dead
        prefill worker may still succeed."""
        worker = self._registry.remove(instance)
        if worker is None:
            return
        self._trials.worker_gone(instance)
        with self._outbox:
            self._introductions.left(worker)
            for request in list(worker.load.requests.values()):
                if request.decode_worker in ("", instance):
                    self._attempts.lose(request, worker, died=died)
            self._dispatcher.run()

    def hopeless(self) -> list[tuple[Worker, str]]:
        """Workers that are to be ended, and why. No event: nothing follows from it here."""
        return self._faults.hopeless()
