"""The step that members of a spread group have agreed on, from what they say. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from decode.spread_record import Record


@dataclass(frozen=True)
class Together:
    """All members launch ``round`` now, of at most ``rows`` sequences of a member and ``drafts`` of
    a sequence; all have ``total`` tokens. They count on ``lenders`` more to share it. ``trial``:
    the trial for which the step is timed; 0: it is for sequences of requests."""

    round: int
    rows: int
    total: int
    lenders: int = 0
    drafts: int = 0
    trial: int = 0


def agreed(members: Sequence[Record | None], number: int) -> Together | None:
    """The step of a round that all of these members have committed to for the same trial, else
    None. A committed round's rows, drafts and trial never change, so all members find the same."""
    here = [each for each in members if each and each.committed_to(number) is not None]
    if len(here) < len(members) or len({each.trial_in(number) for each in here}) > 1:
        return None
    rows = [each.committed_to(number) or 0 for each in here]
    drafts = [each.drafts_in(number) for each in here]
    total = sum(num * (1 + more) for num, more in zip(rows, drafts, strict=True))
    lenders = max(each.lenders_in(number) for each in here)
    trial = here[0].trial_in(number)
    return Together(number, max(rows), total, lenders, max(drafts), trial)
