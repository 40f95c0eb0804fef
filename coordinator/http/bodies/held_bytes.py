"""Limits of the bytes of bodies that are held in memory, in all and per owner."""

from collections import Counter
from collections.abc import Sequence

from coordinator.http.errors import ApiError

_RETRY_AFTER_S = 2.0
_SHARE = 2  # one owner may hold half of the limit


class BodyBytes:
    """Counts the bytes of held bodies per owner (an API key or a client's address), up to
    ``max_bytes`` in all."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        self._num_held = 0

    def hold(self, *owners: str) -> "HeldBytes":
        """Begin to count a body for each of its ``owners``; ``release`` ends it."""
        return HeldBytes(self, owners)

    def take(self, owners: Sequence[str], num_bytes: int) -> None:
        """Count ``num_bytes`` more; raises ApiError, and counts nothing, if that is too much."""
        most = self._max_bytes // _SHARE
        if (held := max(self._held[owner] for owner in owners)) + num_bytes > most:
            raise ApiError(
                429,
                f"your bodies that are held have {held} bytes; at most {most} are taken",
                code="rate_limit_exceeded",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self._num_held + num_bytes > self._max_bytes:
            message = (
                f"the bodies that are held have {self._num_held} bytes; "
                f"at most {self._max_bytes} are taken"
            )
            raise ApiError(503, message, code="overloaded", retry_after_s=_RETRY_AFTER_S)
        self.give_back(owners, -num_bytes)

    def give_back(self, owners: Sequence[str], num_bytes: int) -> None:
        """Count ``num_bytes`` less."""
        self._num_held -= num_bytes
        for owner in owners:
            self._held[owner] -= num_bytes
            if not self._held[owner]:
                del self._held[owner]


class HeldBytes:
    """The bytes of one body."""

    def __init__(self, bodies: BodyBytes, owners: Sequence[str]) -> None:
        self._bodies = bodies
        self._owners = owners
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Count ``num_bytes`` more; raises ApiError if that is too much now."""
        self._bodies.take(self._owners, num_bytes)
        self.num_bytes += num_bytes

    def release(self) -> None:
        """Count nothing of this body any more."""
        self._bodies.give_back(self._owners, self.num_bytes)
        self.num_bytes = 0
