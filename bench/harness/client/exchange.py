"""One HTTP exchange as it was on the wire: the bytes that came, and when, not interpreted."""

from dataclasses import dataclass, field
from time import perf_counter

from bench.harness.client.record import Failure


@dataclass
class Exchange:
    """A request and its response, filled by a connection; complete once ``done_at_s`` is set.

    ``pieces`` are (arrival, bytes) of the body. ``failure``: an error on the wire, or None.
    """

    due_at_s: float
    streamed: bool = False
    sent_at_s: float | None = None
    first_byte_at_s: float | None = None
    last_byte_at_s: float | None = None
    done_at_s: float | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    num_bytes: int = 0
    failure: Failure | None = None
    detail: str = ""

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    def end(self, failure: Failure | None = None, detail: str = "") -> None:
        """End the exchange. Only the first call has an effect."""
        if self.done_at_s is None:
            at_end = failure is None and self.last_byte_at_s is not None
            self.done_at_s = self.last_byte_at_s if at_end else perf_counter()
            self.failure, self.detail = failure, detail
