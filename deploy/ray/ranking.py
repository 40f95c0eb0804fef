"""The order in which the nodes are asked to take a request.

Rendezvous hashing with bounded loads: each conversation has its own order of all nodes, the same in
every process, and goes to the first node whose load is not far above the least loaded one's. When a
node comes or goes, only the conversations that get it or had it move.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

_LEAD_SHARE = 0.25


@dataclass(frozen=True)
class Choice:
    """A node that may be chosen: ``load`` open requests; not ``ready`` when no worker serves."""

    node: str
    load: int
    ready: bool = True


def ranked(key: bytes, choices: Iterable[Choice], max_lead: int) -> list[str]:
    """The nodes, best first. A node is passed over for the next ones while it is not ready, or has
    more than ``max_lead`` open requests, and more than a quarter, above the least loaded one."""
    nodes = sorted(choices, key=lambda choice: _weight(key, choice.node), reverse=True)
    least = min((choice.load for choice in nodes if choice.ready), default=0)
    most = least + max(max_lead, int(least * _LEAD_SHARE))
    nodes.sort(key=lambda choice: _passed_over(choice, most))  # stable: the order above stays
    return [choice.node for choice in nodes]


def _passed_over(choice: Choice, most: int) -> tuple[bool, int]:
    """Behind all within the limits, by load."""
    return not choice.ready, max(0, choice.load - most)


def _weight(key: bytes, node: str) -> bytes:
    return hashlib.blake2b(node.encode(), key=key, digest_size=8).digest()
