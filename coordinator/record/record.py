"""The record of one request: its states, workers, times, and the durations of its handoff.

Pure values. The records of a request are totally ordered by (ended?, attempt, state, revision), and
the highest record wins, in whatever order and however often they arrive: applying a transition
twice changes nothing, and no transition leads back. A late report of an older attempt never wins
over a newer attempt, and nothing wins over an end.

No clock of one process is ever compared with another's. A worker measures durations by its own
monotonic clock and reports them; the coordinator notes by its own clock when messages reach it. The
difference is the time that the messages took. The parts of a handoff:

    no_decode_worker  the first token is here, but no decode worker had memory for the sequence;
    messages          the order is on its way to the worker, or the second token on its way back;
    in_socket         the order has arrived while the worker's loop computes a step (at most this);
    wait_memory       the worker has no pages or no state slot free;
    launch            the worker enqueues the copy;
    copy              the bytes move;
    boundary          the copy waits behind other copies, or is done while the loop is in a step;
    first_step        from the end of the transfer to the end of the first decode step.

The parts add up to ``total``, from the first token at the coordinator to the second.
``to_transferred`` is from the first token to the ``TransferDone`` message. ``overhead`` is the time
that the control path adds: the total less the copy, the first step, and the waits for step
boundaries (in_socket, boundary).
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from transport.wire.errors import MalformedMessage
from transport.wire.messages import ReusedFrom
from transport.wire.sampling import FinishReason

State = Literal["queued", "prefilling", "handoff", "decoding", "finished", "failed", "cancelled"]

# Ends come last. A coordinator ends a request once. A second end is only written by another
# coordinator that took the owner for dead: `failed`. The owner's end is the truth: it ranks higher.
_RANK: Final[Mapping[State, int]] = {
    "queued": 0, "prefilling": 1, "handoff": 2, "decoding": 3,
    "failed": 5, "cancelled": 6, "finished": 7,
}  # fmt: skip
_TOO_LARGE: Final = 2**63
_TERMINAL: Final = frozenset({"finished", "failed", "cancelled"})

HANDOFF_PARTS: Final = (
    "no_decode_worker", "messages", "in_socket", "wait_memory", "launch", "copy", "boundary",
    "first_step",
)  # fmt: skip
HANDOFF_STAGES: Final = (*HANDOFF_PARTS, "to_transferred", "total", "overhead")

_WAITS: Final = ("in_socket", "copy", "boundary", "first_step")
_NEEDED: Final = (
    "prefilled_at", "handoff_placed_at", "transferred_at", "first_decode_at", "in_socket_s",
    "wait_memory_s", "launch_s", "copy_s", "boundary_s", "first_step_s",
)  # fmt: skip


class RequestRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of one request, as Redis keeps it.

    ``…_at`` are Unix seconds by the coordinator's clock, ``…_s`` durations by a worker's clock.
    Both are None until known, and the newest attempt's, except ``received_at`` and
    ``first_token_at``. The durations between ``prefilled_at`` and ``first_decode_at`` are the parts
    of the handoff.

    ``bytes_moved``, ``drafts_verified`` and ``drafts_accepted`` count all attempts,
    ``handoff_bytes`` the newest one. ``num_moves``: how often another worker has gone on with it;
    ``prefill_worker`` is then the worker before that. The attempt that gave the first token did
    not compute ``num_reused`` tokens of the prompt; ``reused`` says where they came from.

    ``http_id`` is the client's X-Request-Id, ``coordinator`` the instance that owns the request.
    ``failure_code`` is stable, ``failure_message`` for people. ``revision`` counts the changes.
    ``answer_cut``: the request ended, but its client left or was cut off before it had received the
    whole stream.
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
    num_moves: int = 0
    drafts_verified: int = 0
    drafts_accepted: int = 0
    num_reused: int = 0
    reused: ReusedFrom = ""
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
        """The key by which records are ordered. Its digits have fixed widths, so that it compares
        as text, in Lua too: ended (1), attempt (9), rank of the state (1), revision (9)."""
        return f"{self.ended:d}{self.attempt:09d}{_RANK[self.state]:d}{self.revision:09d}"

    def to_fields(self) -> dict[str, str]:
        """The fields of the Redis hash: every field that is set, and ``order``, as UTF-8 text."""
        fields = {
            name: _text(value)
            for name, value in structs.asdict(self).items()
            if value is not None and value != ""
        }
        return fields | {"order": self.order}

    @staticmethod
    def from_fields(fields: Mapping[str, str]) -> "RequestRecord":
        """The record in a Redis hash; the inverse of ``to_fields``. Raises MalformedMessage."""
        try:
            record = msgspec.convert(dict(fields), RequestRecord, strict=False)
        except msgspec.ValidationError as error:
            raise MalformedMessage(f"a request's record in Redis is unreadable: {error}") from None
        for name, value in structs.asdict(record).items():
            if isinstance(value, int | float) and not abs(value) < _TOO_LARGE:  # nor is NaN
                raise MalformedMessage(f"a request's record in Redis is unreadable: {name}")
        return record


def stage_seconds(stages: Mapping[str, float | None]) -> dict[str, float]:
    """Seconds of each of ``HANDOFF_STAGES``, computed from the named fields of a request's record;
    empty if the request was not handed off and decoded."""
    at = {name: stages.get(name) for name in _NEEDED}
    known = {name: value for name, value in at.items() if value is not None}
    if len(known) < len(_NEEDED):
        return {}
    found = {
        "no_decode_worker": known["handoff_placed_at"] - known["prefilled_at"],
        "wait_memory": known["wait_memory_s"],
        "launch": known["launch_s"],
        "copy": known["copy_s"],
        "boundary": known["boundary_s"],
        "first_step": known["first_step_s"],
        "to_transferred": known["transferred_at"] - known["prefilled_at"],
        "total": known["first_decode_at"] - known["prefilled_at"],
    }
    rest = found["total"] - sum(found[part] for part in HANDOFF_PARTS if part in found)
    found["in_socket"] = min(known["in_socket_s"], max(0.0, rest))
    found["messages"] = rest - found["in_socket"]
    found["overhead"] = found["total"] - sum(found[wait] for wait in _WAITS)
    return found


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
