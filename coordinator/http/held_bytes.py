"""How many bytes of bodies are held, in all and by whom."""

from collections import Counter

from coordinator.http.errors import ApiError

_RETRY_AFTER_S = 2.0
_SHARE = 2  # of all that is allowed, one owner has half at most


class BodyBytes:
    """Counts bytes of bodies by their owner, a key or a client's address, up to ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        self._num_held = 0

    def hold(self, owner: str) -> "HeldBytes":
        """Begin to count a body; ``release`` it when the body is read."""
        return HeldBytes(self, owner)

    def take(self, owner: str, num_bytes: int) -> None:
        """Raises ApiError, and takes nothing, where it is too much now."""
        if self._held[owner] + num_bytes > self._max_bytes // _SHARE:
            raise ApiError(
                429,
                f"your bodies that wait to be read hold {self._held[owner]} bytes; "
                f"at most {self._max_bytes // _SHARE} are taken",
                code="rate_limit_exceeded",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self._num_held + num_bytes > self._max_bytes:
            message = f"bodies that wait to be read hold {self._num_held} bytes, the most allowed"
            raise ApiError(503, message, code="overloaded", retry_after_s=_RETRY_AFTER_S)
        self.give_back(owner, -num_bytes)

    def give_back(self, owner: str, num_bytes: int) -> None:
        self._num_held -= num_bytes
        self._held[owner] -= num_bytes
        if not self._held[owner]:
            del self._held[owner]


class HeldBytes:
    def __init__(self, bodies: BodyBytes, owner: str) -> None:
        self._bodies = bodies
        self._owner = owner
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Raises ApiError where it is too much now."""
        self._bodies.take(self._owner, num_bytes)
        self.num_bytes += num_bytes

    def release(self) -> None:
        self._bodies.give_back(self._owner, self.num_bytes)
        self.num_bytes = 0
