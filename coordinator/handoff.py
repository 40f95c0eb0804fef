"""How long each part of a handoff took. Pure.

No clock of one process is ever compared with another's. A worker measures durations by its own
monotonic clock and reports them; the coordinator notes when messages reach it, by its own. What
lies between the two is the way of the messages:

    choose      the first token is here; no decode worker has room yet, or none is asked
    order       the order to pull on its way, and the news that all has landed on its way back
    unseen      the order has come, but the worker's loop is computing a step (at most this long)
    room        the worker has no pages or no state slot free
    launch      the copy is enqueued
    copy        the bytes move
    boundary    enqueued, but the copy's turn has not come; or copied, but the loop is in a step
    first_step  landed, until the first decode step with it is done
    token       its token on its way to the coordinator

``total`` is their sum. ``overhead`` is what the control path adds: the total less the copy, the
first step, and the waits for step boundaries (unseen, boundary).
"""

from collections.abc import Mapping
from typing import Final

PARTS: Final = (
    "choose", "order", "unseen", "room", "launch", "copy", "boundary", "first_step", "token",
)  # fmt: skip
STAGES: Final = (*PARTS, "total", "overhead")

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
    there_and_back = known["landed_at"] - known["handoff_placed_at"]
    at_worker = sum(known[f"{name}_s"] for name in ("room", "launch", "copy", "boundary"))
    order = max(0.0, there_and_back - at_worker)
    unseen = min(known["unseen_s"], order)
    found = {
        "choose": known["handoff_placed_at"] - known["prefilled_at"],
        "order": order - unseen,
        "unseen": unseen,
        "room": known["room_s"],
        "launch": known["launch_s"],
        "copy": known["copy_s"],
        "boundary": known["boundary_s"],
        "first_step": known["first_step_s"],
        "token": max(0.0, known["first_decode_at"] - known["landed_at"] - known["first_step_s"]),
    }
    total = sum(found.values())
    waits = found["copy"] + found["boundary"] + found["unseen"] + found["first_step"]
    return found | {"total": total, "overhead": total - waits}
