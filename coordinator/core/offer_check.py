"""Whether a worker's ``Prefilled`` fits the worker and the request that it is about. Pure.

A decode worker asserts that an offer's pages and tokens add up, so a wrong offer from one worker
would end another.
"""

from coordinator.core.registry import Worker
from coordinator.core.request import Request, State
from transport.wire.messages import Prefilled


def offer_problem(message: Prefilled, worker: Worker, request: Request) -> str:
    """What contradicts the request's order or the worker's pools; "" if nothing does, or the
    message is stale. Called before the message's token is counted."""
    offer = message.offer
    stale = request.state is not State.PREFILLING or request.attempt != message.token.attempt
    if offer is None or stale:
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
