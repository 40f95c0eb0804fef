"""Checks of workers' messages against what the coordinator knows. Pure.

A message that contradicts it would break another worker. Each check returns the problem, or "" if
there is none.
"""

from collections.abc import Mapping

from coordinator.core.request import Request, State
from coordinator.core.workers.worker import Worker
from transport.wire.messages import FromWorker, Prefilled, Settled
from transport.wire.offers import KeptPrefix, Offer, PrefixesChanged
from transport.wire.prompt_logprobs import PromptLogprobs, row_bytes


def contradiction(message: FromWorker, worker: Worker, requests: Mapping[str, Request]) -> str:
    """The problem with a message of a worker; ``requests`` are the open ones. Call it before the
    message is handled."""
    match message:
        case PromptLogprobs() if request := requests.get(message.request_id):
            return rows_problem(message, request)
        case Prefilled() if request := requests.get(message.token.request_id):
            return prefilled_problem(message, worker, request)
        case Settled() if request := requests.get(message.request_id):
            return settled_problem(message, worker, request)
        case PrefixesChanged():
            problems = (kept_problem(kept, worker) for kept in message.added)
            return next(filter(None, problems), "")
    return ""


def rows_problem(message: PromptLogprobs, request: Request) -> str:
    """The problem with log-probabilities of a prompt, compared with its request."""
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
    """The problem with a ``Prefilled``, compared with the request's order; "" for a stale
    message."""
    if request.state is not State.PREFILLING or request.attempt != message.token.attempt:
        return ""
    if request.num_scored < request.spec.num_scored:
        return f"log-probabilities of {request.num_scored} of {request.spec.num_scored} tokens"
    if message.num_reused >= request.num_tokens:
        return f"{message.num_reused} tokens reused, ordered were {request.num_tokens}"
    return offer_problem(message, worker, request)


def offer_problem(message: Prefilled, worker: Worker, request: Request) -> str:
    """The problem with an offer, compared with the request's order and the worker's memory."""
    offer = message.offer
    if offer is None:
        return ""
    if not worker.can_be("prefill"):
        return f"an offer by a worker of role {worker.role}"
    if offer.num_tokens != request.num_tokens:
        return f"an offer of {offer.num_tokens} tokens, ordered were {request.num_tokens}"
    return _memory_problem(offer, worker)


def settled_problem(message: Settled, worker: Worker, request: Request) -> str:
    """The problem with the offer of a request that is to move; "" for a stale message."""
    offer = message.offer
    if request.state is not State.DECODING or request.attempt != message.attempt:
        return ""
    if not request.moving or worker.instance != request.decode_worker:
        return "an offer of a request that is not to move from there"
    if offer.num_tokens != request.num_tokens - 1:
        return f"an offer of {offer.num_tokens} tokens, of a request of {request.num_tokens}"
    return _memory_problem(offer, worker)


def kept_problem(kept: KeptPrefix, worker: Worker) -> str:
    """The problem with a kept prefix, in itself or compared with the worker's memory."""
    if kept.num_tokens > worker.hello.max_seq_len:
        return f"a prefix of {kept.num_tokens} tokens, of {worker.hello.max_seq_len} at most"
    ends_with_page = kept.num_tokens % worker.layout.page_size == 0
    if ends_with_page != (kept.key == kept.pages_key):
        return f"a prefix of {kept.num_tokens} tokens with a key of another length"
    num_pages = 0 if worker.layout.has_states else kept.num_tokens // worker.layout.page_size
    if len(kept.page_keys) != num_pages or kept.page_keys[-1:] not in ((), (kept.pages_key,)):
        return f"a prefix of {kept.num_tokens} tokens with {len(kept.page_keys)} keys of pages"
    offer = kept.offer
    if offer is None:
        return ""
    if offer.num_tokens != kept.num_tokens:
        return f"an offer of {offer.num_tokens} tokens, of a prefix of {kept.num_tokens}"
    return _memory_problem(offer, worker)


def _memory_problem(offer: Offer, worker: Worker) -> str:
    """The problem with the pages of an offer. A worker that pulls asserts that pages and tokens add
    up, so a wrong offer from one worker would end another."""
    if offer.instance != worker.instance:
        return f"an offer of {offer.instance}'s memory"
    pools = worker.hello.memory.pools
    num_pages = worker.layout.pages_for(offer.num_tokens)
    if len(offer.block_table) != num_pages:
        return f"an offer of {len(offer.block_table)} pages, not {num_pages}"
    if max(offer.block_table) >= pools.num_pages:
        return f"an offer of page {max(offer.block_table)}, of {pools.num_pages}"
    num_slots = worker.layout.num_slots(pools)
    if offer.state_slot >= num_slots:
        return f"an offer of state slot {offer.state_slot}, of {num_slots}"
    return ""
