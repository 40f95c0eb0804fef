"""A process that takes decode steps with others: it prints what it launches, one line each.

    python -m tests.worker.lockstep_member NAME ROWS     then a line of JSON: the group

Its device computes nothing, and gives up a spread step that another member has not launched within
``DEVICE_WAIT_S``; what each has launched last is in shared memory, too.
"""

import mmap
import sys
import time
from collections.abc import Sequence

import msgspec

from decode.lockstep import LOCAL, WAIT, LockstepTimes
from engine.batch import ForwardBatch, SpreadPlan, StepResult
from engine.spread.shapes import plain_shapes
from transport.copy import shm
from transport.wire.spread import ExchangeExport, SpreadGroup
from worker.spread.membership import Membership
from worker.spread.records import OwnRecord, Records

TIMES = LockstepTimes(wait_s=2.0, back_off_s=0.2, max_back_off_s=1.0)
DEVICE_WAIT_S = 1.0
LOCAL_S = 0.002
LOOK_S = 0.0002
"""How often it looks for what others have written: a machine may have fewer cores than members."""


class Device:
    """A member's ``Spreading``: the last round that it has launched is its exchange memory."""

    shapes = plain_shapes((4, 16, 64))

    def __init__(self, name: str) -> None:
        self._segment = shm.Segment(f"launched-{name}", 8)
        self.export = ExchangeExport("shm", self._segment.handle, 8)
        self._peers: list[mmap.mmap] = []

    def join(
        self, generation: int, rank: int, exports: Sequence[ExchangeExport], num_lenders: int
    ) -> None:
        self._peers = [shm.open_segment(each.handle, 8) for each in exports]

    def leave(self) -> None:
        self._peers = []

    def launch(self, batch: ForwardBatch, plan: SpreadPlan) -> "Launched":
        self._segment.memory[:8] = plan.round.to_bytes(8, "little")
        return Launched(self._peers, plan.round)


class Launched:
    def __init__(self, peers: list[mmap.mmap], number: int) -> None:
        self._peers, self._number = peers, number

    def result(self) -> StepResult:
        deadline = time.monotonic() + DEVICE_WAIT_S
        while any(int.from_bytes(peer[:8], "little") < self._number for peer in self._peers):
            if time.monotonic() > deadline:
                return StepResult((), aborted=True)
            time.sleep(LOOK_S)
        return StepResult(())


def main(name: str, rows: int) -> None:
    member = Membership(Device(name), name, "8", Records(OwnRecord(name)), times=TIMES)
    say(export=msgspec.to_builtins(member.export))
    group = msgspec.json.decode(sys.stdin.readline(), type=SpreadGroup)
    joined = member.join(group)
    assert joined is not None
    assert not joined.problem
    waits_since = None
    while True:
        plan = member.decide(rows, willing=True)
        now = time.monotonic()
        if plan == WAIT:
            waits_since = now if waits_since is None else waits_since
            time.sleep(LOOK_S)
            continue
        waited_s = 0.0 if waits_since is None else now - waits_since
        waits_since = None
        if plan == LOCAL:
            time.sleep(LOCAL_S)  # a local step
            say(local=waited_s)
            continue
        result = member.launch(ForwardBatch(()), plan).result()
        say(round=plan.round, bucket=plan.bucket, aborted=result.aborted)
        if result.aborted:
            member.aborted(())


def say(**what: object) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
