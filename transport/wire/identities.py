"""Identities of connections on the worker channel: the instance id and a secret of its process.

ZeroMQ gives an identity to the newest connection that claims it, so a worker whose connection broke
is reached again at once. Instance ids are no secret: ``/status`` and peers name them. So an
identity also has 128 random bits, which a worker tells only the coordinator: no other process can
claim its identity, and another identity with its instance id is refused.
"""

import re
from collections.abc import Iterable
from secrets import token_hex

_IDENTITY = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,63}?)(?:\.[0-9a-f]{32})?")


def new_identity(instance: str) -> bytes:
    """An identity that no other process can guess."""
    return f"{instance}.{token_hex(16)}".encode()


def instance_of(identity: bytes) -> str | None:
    """The instance id in an identity; None if there is none. The secret part may be missing, as
    other versions have none."""
    match = _IDENTITY.fullmatch(identity)
    return None if match is None else match[1].decode()


class Peers:
    """The identity of each instance: the first one that spoke, until ``keep`` leaves it out."""

    def __init__(self) -> None:
        self._identities: dict[str, bytes] = {}

    def owns(self, instance: str, identity: bytes) -> bool:
        """True if the identity is the instance's, or becomes it now."""
        return self._identities.setdefault(instance, identity) == identity

    def identity(self, instance: str) -> bytes | None:
        return self._identities.get(instance)

    def keep(self, instances: Iterable[str]) -> None:
        """Forget the identities of all other instances."""
        known = self._identities
        self._identities = {each: known[each] for each in instances if each in known}
