"""What a worker of each role does. Only this module asks for a worker's role.

A role is a name on the wire, on the command line and in instance ids. Everything else asks what the
worker can do: which graphs its engine captures, which memory it opens, which orders it takes. A
worker of any role has all of it for prompts and for decode steps, so that the coordinator can
assign it the other role without a word to it.
"""

from dataclasses import dataclass

from transport.wire.messages import Role
from transport.wire.session import ORDERS, ORDERS_OF_ANY, Work


@dataclass(frozen=True)
class Capabilities:
    """``other_roles``: those that the coordinator may assign too. ``computes_prompts``: prompts are
    its regular work, so it has graphs and host memory for them; a decode worker computes prompts
    only while no prefill worker does. ``decodes``: it has graphs of decode steps. ``offers``:
    decode workers open its memory for handoffs. ``pulls``: its sequences come by handoff, at first.
    ``orders``: the messages that the coordinator sends to it."""

    other_roles: tuple[Role, ...]
    computes_prompts: bool
    decodes: bool
    offers: bool
    pulls: bool
    orders: tuple[type[Work], ...]


def capabilities_of(role: Role, *, any_role: bool = False) -> Capabilities:
    """The capabilities of workers of ``role``, or of those that begin with it and take ``any_role``
    of a split set-up. Raises ValueError for a colocated worker of any role."""
    prefill, decode = role == "prefill", role == "decode"
    if any_role and not (prefill or decode):
        raise ValueError("any_role: a colocated worker computes prompts and decodes already")
    if any_role:
        return Capabilities(
            other_roles=("decode",) if prefill else ("prefill",),
            computes_prompts=True,
            decodes=True,
            offers=True,
            pulls=decode,
            orders=ORDERS_OF_ANY,
        )
    return Capabilities(
        other_roles=(),
        computes_prompts=not decode,
        decodes=not prefill,
        offers=prefill,
        pulls=decode,
        orders=ORDERS[role],
    )
