"""A worker's claim of a GPU: asked of the coordinator before anything is loaded."""

from collections.abc import Callable

from transport.channel import WorkerChannel
from transport.errors import BatonError, DeadlineExceeded
from transport.messages import Claim, Denied, Granted, Refused

CLAIM_EVERY_S = 1.0


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

    Asks until it is granted: a dead worker's lease takes some seconds to end. Raises ClaimDenied
    with the last reason, DeadlineExceeded when nobody answers, ProtocolMismatch.
    """
    deadline = clock() + timeout_s
    ask_at, reason = clock(), ""
    while clock() < deadline:
        if clock() >= ask_at:
            channel.send(claim)
            ask_at = clock() + CLAIM_EVERY_S
        for message in channel.receive(max(0.0, ask_at - clock())):
            match message:
                case Granted(gpu=gpu):
                    return gpu
                case Denied(reason=reason):
                    on_denied(reason)
                case Refused(reason=refusal):
                    raise ClaimDenied(refusal)
                case _:
                    pass  # a heartbeat, or what was meant for a worker that is in
    if reason:
        raise ClaimDenied(f"gpu: none is free after {timeout_s:.0f} s: {reason}")
    raise DeadlineExceeded(
        who=claim.instance,
        waited_for=f"a GPU from the coordinator at {channel.endpoint}",
        after_s=timeout_s,
        got="no answer",
    )
