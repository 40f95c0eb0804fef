"""What requests reuse of earlier ones: what is ordered, and what is said about it."""

from coordinator.core.contract import SequenceRequest, Token
from coordinator.core.effects import Emit
from coordinator.core.request import Request
from tests.coordinator.desk import Desk
from transport.wire.messages import Decode, Failed, Prefill, Prefilled, TokenOut
from transport.wire.offers import Offer
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed


def prefilled(desk: Desk, request: Request, num_reused: int) -> Token:
    """Its first token of this attempt, as its client gets it."""
    desk.take_effects()
    offer = Offer(request.prefill_worker, (0,), 2, 3, request.num_tokens)
    token = TokenOut("r", request.attempt, len(request.output_ids), 1)
    message = Prefilled(token, offer, 1.0, 2.0, num_reused, "gpu" if num_reused else "")
    desk.life.prefilled(request.prefill_worker, message)
    (emitted,) = [e for e in desk.take_effects() if isinstance(e, Emit)]
    return emitted.token


def test_orders_carry_the_salt_and_the_boundaries() -> None:
    desk = Desk()
    spec = SequenceRequest(
        "r", packed(range(10)), SamplingParams(), StopRule(8), salt="s", boundaries=(4, 8)
    )
    request = desk.life.submit(spec, desk.now)
    desk.prefill(request)
    orders = [order for _, order in desk.sent() if isinstance(order, Prefill | Decode)]
    assert [(order.salt, order.boundaries) for order in orders] == [("s", (4, 8))] * 2


def test_the_first_token_says_what_its_attempt_reused() -> None:
    desk = Desk()
    request = desk.submit()
    desk.life.failed(request.prefill_worker, Failed("r", 1, "preempted", "", True))
    assert prefilled(desk, request, 6).num_reused == 6
    assert (request.num_reused, request.reused) == (6, "gpu")
    desk.life.worker_lost(request.prefill_worker)
    desk.life.worker_lost(request.decode_worker)
    assert request.attempt == 3
    assert prefilled(desk, request, 0).num_reused == 0
    assert (request.num_reused, request.reused) == (6, "gpu"), "of the first token's attempt"
