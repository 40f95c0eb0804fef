"""Messages of workers: each goes to the lifecycle or the membership."""

import asyncio
import logging
import time
from typing import assert_never

from coordinator.core.lifecycle import Lifecycle
from coordinator.core.membership import Membership
from coordinator.core.observer import Observer
from coordinator.core.registry import Registry, Worker
from coordinator.core.request import Request, State
from transport.wire.channel import CoordinatorChannel
from transport.wire.errors import MalformedMessage, WireError
from transport.wire.messages import (
    Failed,
    FromWorker,
    Goodbye,
    Heartbeat,
    Hello,
    PeerTested,
    Prefilled,
    TokenOut,
    Tokens,
    TransferDone,
    Welcome,
)
from transport.wire.offers import PrefixesChanged
from transport.wire.prompt_logprobs import PromptLogprobs, row_bytes

log = logging.getLogger(__name__)


class Inbox:
    """Handles what workers send; answers go to ``channel``. ``complete`` is set once there have
    been workers of every role that is needed."""

    def __init__(
        self,
        channel: CoordinatorChannel,
        registry: Registry,
        lifecycle: Lifecycle,
        membership: Membership,
        observer: Observer,
        welcome: Welcome,
    ) -> None:
        self.complete = asyncio.Event()
        self._channel = channel
        self._registry = registry
        self._lifecycle = lifecycle
        self._membership = membership
        self._observer = observer
        self._welcome = welcome

    def take(self, instance: str, message: FromWorker | WireError) -> None:
        """Handle a message; does not raise, since a bug there must not end every stream."""
        try:
            self.handle(instance, message)
        except Exception:
            kind = type(message).__name__
            fields = self._request_of(message)
            log.exception("handling %s from %s failed", kind, instance, extra=fields)

    def handle(self, instance: str, message: FromWorker | WireError) -> None:
        if isinstance(message, WireError):
            self._channel.send(instance, self._membership.distrust(instance, message))
            return
        if isinstance(message, Hello):
            self._admit(message)
            return
        worker = self._registry.get(instance)
        if worker is None:
            self._channel.send(instance, self._membership.unknown(instance))
            return
        worker.heard_at = time.monotonic()
        worker.settled = True
        match message:
            case Heartbeat():
                self._heartbeat(worker, message)
            case PromptLogprobs():
                self._prompt_logprobs(worker, message)
            case Prefilled():
                self._prefilled(worker, message)
            case TransferDone():
                self._lifecycle.transfer_done(instance, message)
            case Tokens(tokens=tokens):
                worker.output_tokens.add(len(tokens), worker.heard_at)
                self._lifecycle.tokens(instance, message)
            case PrefixesChanged():
                worker.kept.change(message)
            case Failed():
                self._lifecycle.failed(instance, message)
            case PeerTested(instance=prefill):
                if self._registry.get(prefill) is not None:
                    self._observer.peer_tested(instance, message)
                self._lifecycle.peer_tested(instance, message)
            case Goodbye(draining=True, unfit=unfit):
                if unfit:
                    gpu = worker.hello.gpu
                    log.error("%s is draining: GPU %s is unfit: %s", instance, gpu, unfit)
                else:
                    log.info("%s is draining", instance)
                self._lifecycle.drain(worker)
            case Goodbye():
                self._membership.left(worker)
            case _:
                assert_never(message)

    def _admit(self, hello: Hello) -> None:
        instance = hello.instance
        known = self._registry.get(instance)
        self._channel.send(instance, self._membership.admit(hello, self._welcome))
        if self._registry.get(instance) is not known:
            self._lifecycle.introduce(instance)
            if not self._registry.missing_roles():
                self.complete.set()

    def _heartbeat(self, worker: Worker, message: Heartbeat) -> None:
        error = message.gauges.accounting_error
        if error and error != worker.gauges.accounting_error:
            log.error("cache accounting error at %s: %s", worker.instance, error)
        worker.gauges, worker.gpu = message.gauges, message.gpu
        worker.malformed_dropped = message.malformed_dropped
        worker.drafts.note(message.gauges.drafts, worker.heard_at)
        self._observer.drafted(worker)
        self._observer.heartbeat(worker)
        self._lifecycle.reconcile(worker, set(message.held), self._welcome.heartbeat_s)

    def _prompt_logprobs(self, worker: Worker, message: PromptLogprobs) -> None:
        request = self._lifecycle.requests.get(message.request_id)
        if request and (problem := rows_problem(message, request)):
            self.handle(worker.instance, MalformedMessage(f"from {worker.instance}: {problem}"))
            return
        self._lifecycle.prompt_logprobs(worker.instance, message)

    def _prefilled(self, worker: Worker, message: Prefilled) -> None:
        request = self._lifecycle.requests.get(message.token.request_id)
        if request and (problem := prefilled_problem(message, worker, request)):
            self.handle(worker.instance, MalformedMessage(f"from {worker.instance}: {problem}"))
            return
        if request is not None:
            worker.prompt_tokens.add(request.num_tokens, worker.heard_at)
        worker.output_tokens.add(1, worker.heard_at)
        self._lifecycle.prefilled(worker.instance, message)

    def _request_of(self, message: FromWorker | WireError) -> dict[str, object]:
        """Log fields of the open request that a message is about, if it is about one."""
        match message:
            case Prefilled(token=TokenOut(request_id=request_id)):
                pass
            case PromptLogprobs(request_id=request_id) | TransferDone(request_id=request_id):
                pass
            case Failed(request_id=request_id):
                pass
            case _:
                return {}
        request = self._lifecycle.requests.get(request_id)
        return {} if request is None else request.log_fields


def rows_problem(message: PromptLogprobs, request: Request) -> str:
    """What in the log-probabilities of a prompt contradicts its request; "" if nothing does."""
    num_top = request.spec.sampling.prompt_logprobs
    if num_top is None:
        return "log-probabilities of a prompt that did not ask for them"
    num_rows, rest = divmod(len(message.rows), row_bytes(num_top))
    if rest or not num_rows:
        return f"{len(message.rows)} bytes of log-probabilities, of {row_bytes(num_top)} a token"
    if message.start + num_rows > len(request.spec.prompt_ids):
        return f"log-probabilities of tokens {message.start} to {message.start + num_rows - 1}"
    return ""


def prefilled_problem(message: Prefilled, worker: Worker, request: Request) -> str:
    """What in a Prefilled contradicts the request's order; "" if nothing does, or the message is
    stale. Called before the message's token is counted."""
    if request.state is not State.PREFILLING or request.attempt != message.token.attempt:
        return ""
    if request.num_scored < request.spec.num_scored:
        return f"log-probabilities of {request.num_scored} of {request.spec.num_scored} tokens"
    return offer_problem(message, worker, request)


def offer_problem(message: Prefilled, worker: Worker, request: Request) -> str:
    """What in an offer contradicts the request's order or the worker's pages and state slots.

    A decode worker asserts that an offer's pages and tokens add up, so a wrong offer from one
    worker would end another.
    """
    offer = message.offer
    if offer is None:
        return ""
    if worker.hello.role != "prefill":
        return f"an offer by a worker of role {worker.hello.role}"
    if offer.instance != worker.instance:
        return f"an offer of {offer.instance}'s memory"
    if offer.num_tokens != request.num_tokens:
        return f"an offer of {offer.num_tokens} tokens, ordered were {request.num_tokens}"
    pools = worker.hello.memory.pools
    num_pages = worker.layout.pages_for(offer.num_tokens)
    if len(offer.block_table) != num_pages:
        return f"an offer of {len(offer.block_table)} pages, not {num_pages}"
    if max(offer.block_table) >= pools.num_pages:
        return f"an offer of page {max(offer.block_table)}, of {pools.num_pages}"
    if offer.state_slot >= pools.num_state_slots:
        return f"an offer of state slot {offer.state_slot}, of {pools.num_state_slots}"
    return ""
