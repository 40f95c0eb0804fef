"""How long each part of a handoff took. Pure.

No clock of one process is ever compared with another's. A worker measures durations by its own
monotonic clock and reports them; the coordinator notes when messages reach it, by its own. What
lies between the two is the way of the messages. The parts:

    no_decode_worker  the first token is here, but no decode worker had memory for the sequence
    messages          the order is on its way to the worker, or the second token on its way back
    in_socket         the order has arrived while the worker's loop computes a step (at most this)
    wait_memory       the worker has no pages or no state slot free
    launch            the worker enqueues the copy
    copy              the bytes move
    boundary          the copy waits behind other copies, or is done while the loop is in a step
    first_step        from the end of the transfer to the end of the first decode step

They add up to ``total``, from the first token at the coordinator to the second. ``to_transferred``
is from the first token to the ``TransferDone`` message. ``overhead`` is what the control path adds:
the total less the copy, the first step, and the waits for step boundaries (in_socket, boundary).
"""

from collections.abc import Mapping
from typing import Final

PARTS: Final = (
    "no_decode_worker", "messages", "in_socket", "wait_memory", "launch", "copy", "boundary",
    "first_step",
)  # fmt: skip
STAGES: Final = (*PARTS, "to_transferred", "total", "overhead")

_WAITS: Final = ("in_socket", "copy", "boundary", "first_step")
_NEEDED: Final = (
    "prefilled_at", "handoff_placed_at", "transferred_at", "first_decode_at", "in_socket_s",
    "wait_memory_s", "launch_s", "copy_s", "boundary_s", "first_step_s",
)  # fmt: skip


def stage_seconds(stages: Mapping[str, float | None]) -> dict[str, float]:
    """Seconds of each of ``STAGES``, from the fields of a request's record by their names; empty
    unless the request was handed off and decoded."""
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
    rest = found["total"] - sum(found[part] for part in PARTS if part in found)
    found["in_socket"] = min(known["in_socket_s"], max(0.0, rest))
    found["messages"] = rest - found["in_socket"]
    found["overhead"] = found["total"] - sum(found[wait] for wait in _WAITS)
    return found
