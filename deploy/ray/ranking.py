"""The order in which the nodes are asked to take a request.

Rendezvous hashing with bounded loads: each conversation has its own order of all nodes, the same in
every process. It goes to the first node whose load is not far above that of the least loaded node.
When a node comes or goes, only the conversations of that node move.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

_LEAD_SHARE = 0.25


@dataclass(frozen=True)
class Choice:
    """A node that may be chosen. ``load``: open requests. ``ready``: a worker serves."""

    node: str
    load: int
    ready: bool = True


def ranked(key: bytes, choices: Iterable[Choice], max_lead: int) -> list[str]:
    """The nodes, best first. A node that is not ready comes last. Before these come overloaded
    nodes, whose open requests are over ``max_lead`` and over a quarter above the fewest."""
    nodes = sorted(choices, key=lambda choice: _weight(key, choice.node), reverse=True)
    least = min((choice.load for choice in nodes if choice.ready), default=0)
    most = least + max(max_lead, int(least * _LEAD_SHARE))
    nodes.sort(key=lambda choice: _excess(choice, most))  # stable: keeps the order above
    return [choice.node for choice in nodes]


def _excess(choice: Choice, most: int) -> tuple[bool, int]:
    """Sort key: nodes that are not ready last, and before them those over ``most``, by load."""
    return not choice.ready, max(0, choice.load - most)


def _weight(key: bytes, node: str) -> bytes:
    return hashlib.blake2b(node.encode(), key=key, digest_size=8).digest()
