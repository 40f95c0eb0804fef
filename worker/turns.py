"""Whether prompts or a decode step of the sequences are a worker's next batch, or it waits.

Without a spread group a decode step of all sequences comes, then a batch of prompts. Members of a
group lose by each local step, and one whose GPU computes prompts makes the others take such steps:

1. Prompts are held while the group has a few steps to go (decode/lockstep.py).
2. They begin behind a step of the group, before the next one of the sequences.
3. What the sequences' next step is, one of the group or a local one, is decided shortly before the
   prompts end. So is what a member without sequences does.
"""

from worker.decode_steps import DecodeSteps
from worker.launches import PromptBatches
from worker.room import Room
from worker.spread.group import Group


class Turns:
    """Decides for the next batch of a worker, from what waits in ``room`` and from what is under
    way of its ``steps`` and ``batches`` of prompts."""

    def __init__(
        self, room: Room, group: Group, steps: DecodeSteps, batches: PromptBatches
    ) -> None:
        self._room, self._group = room, group
        self._steps, self._batches = steps, batches

    @property
    def prompts_wait(self) -> bool:
        """True if prompts wait for a few steps of the group: while it takes these, and if others
        wait for this worker to begin with them, and the prompts take little time. Else, where many
        short prompts come, one member or the other would always have some."""
        room = self._room
        if self._group.holds_prompts:
            return True
        both = self._group.joined and room.sequences.has_work and room.prompts.has_work
        return both and self._batches.takes_little and self._group.is_awaited

    def prompts_are_next(self, held: bool) -> bool:
        """True if prompts, which are not ``held``, are computed before the next step of the
        sequences: these have just had one of the group, and the others take local steps until the
        prompts end."""
        room = self._room
        return (
            self._group.in_step
            and room.prompts.has_work
            and room.engine.overlap is None
            and not (held or self._steps.undecided)
        )

    @property
    def steps_wait(self) -> bool:
        """True while the next step, of this worker's sequences or those of others, would wait on
        the device for prompts anyway: it is decided shortly before their end."""
        room = self._room
        return (
            self._group.joined
            and (room.sequences.has_work or self._group.others_decode)
            and room.engine.overlap is None
            and not (self._steps.undecided or room.sequences.settling or room.prompts.has_work)
            and not self._batches.ends_soon
        )

    def shares_next_step(self, held: bool) -> bool:
        """True if nothing keeps this worker from a step of the group: no prompts, unless they are
        ``held``, and no sequence that is to move. While its GPU computes many prompts the others
        would wait for it in vain."""
        room = self._room
        if room.sequences.settling or (room.prompts.has_work and not held):
            return False
        return self._batches.ends_soon
