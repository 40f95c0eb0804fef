"""Messages of workers: each becomes one call of the lifecycle, membership or spread groups."""

import asyncio
import logging
import time
from typing import assert_never

from coordinator.core.message_checks import contradiction
from coordinator.core.observer import Observer
from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.spread.groups import SpreadGroups
from coordinator.core.workers.membership import Membership
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.channel import CoordinatorChannel
from transport.wire.errors import MalformedMessage, WireError
from transport.wire.messages import (
    Failed,
    FromWorker,
    Goodbye,
    Heartbeat,
    Hello,
    LastChunk,
    PeerTested,
    Prefilled,
    Settled,
    TokenOut,
    Tokens,
    TransferDone,
    Welcome,
)
from transport.wire.offers import PrefixesChanged
from transport.wire.prompt_logprobs import PromptLogprobs
from transport.wire.spread import SpreadJoined

log = logging.getLogger(__name__)


class Inbox:
    """Handles the messages of workers, and answers over ``channel``. ``complete`` is set once
    workers of every needed role have joined."""

    def __init__(
        self,
        channel: CoordinatorChannel,
        registry: Registry,
        lifecycle: Lifecycle,
        membership: Membership,
        observer: Observer,
        groups: SpreadGroups,
        welcome: Welcome,
    ) -> None:
        self.complete = asyncio.Event()
        self._channel = channel
        self._registry = registry
        self._lifecycle = lifecycle
        self._membership = membership
        self._observer = observer
        self._groups = groups
        self._welcome = welcome

    def take(self, instance: str, message: FromWorker | WireError) -> None:
        """Handle a message. Does not raise: a bug must not end every stream."""
        try:
            self.handle(instance, message)
        except Exception:
            kind = type(message).__name__
            fields = self._request_of(message)
            log.exception("handling %s from %s failed", kind, instance, extra=fields)

    def handle(self, instance: str, message: FromWorker | WireError) -> None:
        if isinstance(message, WireError):
            self._observer.rejected(message)
            self._channel.send(instance, self._membership.reject(instance, message))
            return
        if isinstance(message, Hello):
            self._admit(message)
            return
        worker = self._registry.get(instance)
        if worker is None:
            self._channel.send(instance, self._membership.answer_unknown(instance))
            return
        worker.heard_at = time.monotonic()
        worker.settled = True
        if problem := contradiction(message, worker, self._lifecycle.requests):
            self.handle(instance, MalformedMessage(f"from {instance}: {problem}"))
            return
        match message:
            case Heartbeat():
                self._heartbeat(worker, message)
            case PromptLogprobs():
                self._lifecycle.prompt_logprobs(instance, message)
            case LastChunk():
                self._lifecycle.last_chunk(instance, message)
            case Prefilled():
                self._prefilled(worker, message)
            case Settled():
                self._lifecycle.settled(instance, message)
            case TransferDone():
                self._lifecycle.transfer_done(instance, message)
            case Tokens(tokens=tokens):
                self._lifecycle.tokens(instance, message)
                worker.note_step(tokens, worker.heard_at)
                self._observer.stepped(len(tokens))
            case PrefixesChanged():
                self._lifecycle.prefixes_changed(instance, message)
            case Failed():
                self._lifecycle.failed(instance, message)
            case PeerTested():
                self._peer_tested(worker, message)
            case SpreadJoined():
                self._groups.joined(worker, message)
            case Goodbye(draining=True, unfit=unfit):
                if unfit:
                    gpu = worker.hello.gpu
                    log.error("%s is draining: GPU %s is unfit: %s", instance, gpu, unfit)
                else:
                    log.info("%s is draining", instance)
                self._lifecycle.worker_draining(worker)
                self._groups.update()
            case Goodbye():
                self._membership.handle_goodbye(worker)
                self._groups.update()
            case _:
                assert_never(message)

    def _admit(self, hello: Hello) -> None:
        instance = hello.instance
        known = self._registry.get(instance)
        self._channel.send(instance, self._membership.admit(hello, self._welcome))
        if self._registry.get(instance) is not known:
            self._lifecycle.worker_joined(instance)
            self._groups.update()
            if not self._registry.missing_roles():
                self.complete.set()

    def _heartbeat(self, worker: Worker, message: Heartbeat) -> None:
        error = message.gauges.accounting_error
        if error and error != worker.gauges.accounting_error:
            log.error("cache accounting error at %s: %s", worker.instance, error)
        worker.take_heartbeat(message)
        self._groups.take_counts(worker)
        self._observer.workers.counted(worker)
        live = {each.instance for each in self._registry.all()}
        self._observer.workers.waited(worker, live)
        self._observer.workers.heartbeat(worker)
        self._lifecycle.reconcile(worker, set(message.held), self._welcome.heartbeat_s)

    def _prefilled(self, worker: Worker, message: Prefilled) -> None:
        request = self._lifecycle.requests.get(message.token.request_id)
        if request is not None:
            num_computed = max(0, request.num_tokens - message.num_reused)
            worker.note_prompt(num_computed, request.num_tokens, request.prefill_assigned_at)
        worker.output_tokens.add(1, worker.heard_at)
        self._lifecycle.prefilled(worker.instance, message)

    def _peer_tested(self, worker: Worker, message: PeerTested) -> None:
        instance, peer, problem = worker.instance, message.instance, message.problem
        if problem and not worker.can_be("decode"):
            log.warning("%s pulls no kept prefixes from %s: %s", instance, peer, problem)
        if self._registry.get(peer) is not None:
            self._observer.workers.peer_tested(worker, message)
        self._lifecycle.peer_tested(instance, message)

    def _request_of(self, message: FromWorker | WireError) -> dict[str, object]:
        """Log fields of the open request that a message is about; empty if there is none."""
        match message:
            case Prefilled(token=TokenOut(request_id=request_id)):
                pass
            case PromptLogprobs(request_id=request_id) | TransferDone(request_id=request_id):
                pass
            case Failed(request_id=request_id) | Settled(request_id=request_id):
                pass
            case _:
                return {}
        request = self._lifecycle.requests.get(request_id)
        return {} if request is None else request.log_fields
