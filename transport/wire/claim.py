"""A worker's claim of a GPU: asked of the coordinator before anything is loaded."""

import logging
from collections.abc import Callable

from transport.wire.channel import WorkerChannel
from transport.wire.errors import BatonError, DeadlineExceeded
from transport.wire.messages import Claim, Denied, Granted, Refused

CLAIM_EVERY_S = 1.0
SILENCE_S = 60.0
"""A coordinator that answers no claim for so long is not there."""

log = logging.getLogger(__name__)


class ClaimDenied(BatonError):
    """No GPU that was asked for is free; the message says who holds them."""


def claim_gpu(
    channel: WorkerChannel,
    claim: Claim,
    *,
    timeout_s: float,
    clock: Callable[[], float],
    on_denied: Callable[[str], None] = lambda reason: None,
) -> str:
    """The UUID of the GPU that is this worker's until its process ends.

    Asks until it is granted: a dead worker's lease takes some seconds to end. ``timeout_s`` 0: as
    long as the coordinator answers, and that it waits is logged once. Raises ClaimDenied with the
    last reason, DeadlineExceeded when the coordinator does not answer, ProtocolMismatch.
    """
    deadline = clock() + (timeout_s or SILENCE_S)
    ask_at, reason = clock(), ""
    while clock() < deadline:
        if clock() >= ask_at:
            channel.send(claim)
            ask_at = clock() + CLAIM_EVERY_S
        for message in channel.receive(max(0.0, ask_at - clock())):
            match message:
                case Granted(gpu=gpu):
                    return gpu
                case Denied(reason=said):
                    if not timeout_s:
                        deadline = clock() + SILENCE_S
                        if not reason:
                            log.warning("no GPU is free; this worker waits for one: %s", said)
                    reason = said
                    on_denied(reason)
                case Refused(reason=refusal):
                    raise ClaimDenied(refusal)
                case _:
                    pass  # a heartbeat, or what was meant for a worker that is in
    if reason and timeout_s:
        raise ClaimDenied(f"gpu: none is free after {timeout_s:.0f} s: {reason}")
    raise DeadlineExceeded(
        who=claim.instance,
        waited_for=f"a GPU from the coordinator at {channel.endpoint}",
        after_s=timeout_s or SILENCE_S,
        got="no answer",
    )
