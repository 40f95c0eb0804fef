"""How long each part of a handoff took. Pure.

No clock of one process is ever compared with another's. A worker measures durations by its own
monotonic clock and reports them; the coordinator notes when messages reach it, by its own. What
lies between the two is the way of the messages. The parts:

    choose      the first token is here, and no decode worker has been chosen: none had room
    messages    the order on its way to the worker, and the second token on its way back
    unseen      the order has come, but the worker's loop is computing a step (at most this long)
    room        the worker has no pages or no state slot free
    launch      the copy is enqueued
    copy        the bytes move
    boundary    enqueued, but the copy's turn has not come; or copied, but the loop is in a step
    first_step  landed, until the first decode step with it is done

They add up to ``total``, from the first token at the coordinator to the second. ``to_landed`` is
from the first token to the news that all has landed. ``overhead`` is what the control path adds:
the total less the copy, the first step, and the waits for step boundaries (unseen, boundary).
"""

from collections.abc import Mapping
from typing import Final

PARTS: Final = (
    "choose", "messages", "unseen", "room", "launch", "copy", "boundary", "first_step",
)  # fmt: skip
STAGES: Final = (*PARTS, "to_landed", "total", "overhead")

_WAITS: Final = ("unseen", "copy", "boundary", "first_step")
_NEEDED: Final = (
    "prefilled_at", "handoff_placed_at", "landed_at", "first_decode_at", "unseen_s", "room_s",
    "launch_s", "copy_s", "boundary_s", "first_step_s",
)  # fmt: skip


def stage_seconds(stages: Mapping[str, float | None]) -> dict[str, float]:
    """Seconds of each of ``STAGES``, from the fields of a request's record by their names; empty
    unless the request was handed off and decoded."""
    at = {name: stages.get(name) for name in _NEEDED}
    known = {name: value for name, value in at.items() if value is not None}
    if len(known) < len(_NEEDED):
        return {}
    found = {
        "choose": known["handoff_placed_at"] - known["prefilled_at"],
        "room": known["room_s"],
        "launch": known["launch_s"],
        "copy": known["copy_s"],
        "boundary": known["boundary_s"],
        "first_step": known["first_step_s"],
        "to_landed": known["landed_at"] - known["prefilled_at"],
        "total": known["first_decode_at"] - known["prefilled_at"],
    }
    rest = found["total"] - sum(found[part] for part in PARTS if part in found)
    found["unseen"] = min(known["unseen_s"], max(0.0, rest))
    found["messages"] = rest - found["unseen"]
    found["overhead"] = found["total"] - sum(found[wait] for wait in _WAITS)
    return found
