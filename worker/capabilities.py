"""What a worker of each role does. Only this module asks for a worker's role.

A role is a name on the wire, on the command line and in instance ids. Everything else asks what the
worker can do: which graphs its engine captures, which memory it opens, which orders it takes.
"""

from dataclasses import dataclass

from transport.wire.messages import Role
from transport.wire.session import ORDERS, Work


@dataclass(frozen=True)
class Capabilities:
    """``computes_prompts``: prompts are its regular work, so it has graphs and host memory for
    them; a decode worker computes prompts only while no prefill worker does. ``decodes``: it has
    graphs of decode steps. ``offers``: decode workers open its memory for handoffs. ``pulls``: its
    sequences come by handoff. ``orders``: the messages that the coordinator sends to it."""

    computes_prompts: bool
    decodes: bool
    offers: bool
    pulls: bool
    orders: tuple[type[Work], ...]


def capabilities_of(role: Role) -> Capabilities:
    """The capabilities of workers of ``role``."""
    prefill, decode = role == "prefill", role == "decode"
    return Capabilities(
        computes_prompts=not decode,
        decodes=not prefill,
        offers=prefill,
        pulls=decode,
        orders=ORDERS[role],
    )
