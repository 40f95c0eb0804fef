"""The record of one request: what happened to it, where and when.

Pure values. A request's records are totally ordered by (ended?, attempt, state, revision), and
the highest one holds, whatever order they arrive in and however often: applying a transition
twice changes nothing, and none leads back. What an older attempt still reports can never win
over a newer one, and nothing wins over an end.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from transport.wire.errors import MalformedMessage
from transport.wire.sampling import FinishReason

State = Literal["queued", "prefilling", "handoff", "decoding", "finished", "failed", "cancelled"]

# Ends come last. A coordinator ends a request once; two ends only meet when another coordinator
# took it for dead and wrote `failed`. Then the owner's verdict is the truth, so it ranks higher.
_RANK: Final[Mapping[State, int]] = {
    "queued": 0, "prefilling": 1, "handoff": 2, "decoding": 3,
    "failed": 5, "cancelled": 6, "finished": 7,
}  # fmt: skip
_TOO_LARGE: Final = 2**63
_TERMINAL: Final = frozenset({"finished", "failed", "cancelled"})


class RequestRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``…_at`` are Unix seconds by the coordinator's clock, ``…_s`` durations by a worker's; None
    until known, and the newest attempt's, but for ``received_at`` and ``first_token_at``. Those
    between ``prefilled_at`` and ``first_decode_at`` are the parts of the handoff (handoff.py).
    ``bytes_moved`` are all attempts', ``handoff_bytes`` the newest one's.

    ``http_id`` is the client's X-Request-Id, ``coordinator`` the instance that owns the request.
    ``failure_code`` is stable, ``failure_message`` for people. ``revision`` counts the changes.
    ``answer_cut``: after it had ended, its client left or was cut off before it had the stream
    whole.
    """

    request_id: str
    coordinator: str
    http_id: str = ""
    state: State = "queued"
    attempt: int = 1
    revision: int = 0
    prefill_worker: str = ""
    decode_worker: str = ""
    num_prompt: int = 0
    num_output: int = 0
    bytes_moved: int = 0
    handoff_bytes: int = 0
    finish_reason: FinishReason | None = None
    failure_code: str = ""
    failure_message: str = ""
    received_at: float | None = None
    queued_at: float | None = None
    placed_at: float | None = None
    prefill_wait_s: float | None = None
    prefill_s: float | None = None
    prefilled_at: float | None = None
    first_token_at: float | None = None
    handoff_placed_at: float | None = None
    in_socket_s: float | None = None
    wait_memory_s: float | None = None
    launch_s: float | None = None
    copy_s: float | None = None
    boundary_s: float | None = None
    transferred_at: float | None = None
    first_step_s: float | None = None
    first_decode_at: float | None = None
    ended_at: float | None = None
    answer_cut: bool = False

    @property
    def ended(self) -> bool:
        return self.state in _TERMINAL

    @property
    def order(self) -> str:
        """The order key, fixed-width digits so that it compares as text, in Lua too:
        ended (1), attempt (9), rank of the state (1), revision (9)."""
        return f"{self.ended:d}{self.attempt:09d}{_RANK[self.state]:d}{self.revision:09d}"

    def to_fields(self) -> dict[str, str]:
        """The Redis hash: every field that is set, and ``order``, as UTF-8-safe text."""
        fields = {
            name: _text(value)
            for name, value in structs.asdict(self).items()
            if value is not None and value != ""
        }
        return fields | {"order": self.order}

    @staticmethod
    def from_fields(fields: Mapping[str, str]) -> "RequestRecord":
        """The inverse of ``to_fields``. Raises MalformedMessage."""
        try:
            record = msgspec.convert(dict(fields), RequestRecord, strict=False)
        except msgspec.ValidationError as error:
            raise MalformedMessage(f"a request's record in Redis is unreadable: {error}") from None
        for name, value in structs.asdict(record).items():
            if isinstance(value, int | float) and not abs(value) < _TOO_LARGE:  # nor is NaN
                raise MalformedMessage(f"a request's record in Redis is unreadable: {name}")
        return record


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
