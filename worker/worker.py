"""The round of every worker: receive, admit, schedule, launch, process the previous step, publish.

Queues a request passes through here:

1 prompts.waiting      Accepted, no memory yet (orders.py).
2 prompts.filling      It has pages and a state slot; chunks are being computed.
3 offers               (Prefill) Done, first token sent; a decode worker can read it.
4 transfers            (Decode) Its cache is pulled from a prefill worker (handoff.py).
5 sequences.running    It takes part in every decode step.
6 launches             Batches that the engine computes, one behind the other, and the
                       overlapped batches of prompts beside them (overlapped.py).
7 sequences.retiring   Ended; it waits for its last launched step.

The order (orders.py) decides the way: ``Prefill`` takes 1, 2, 3; ``Decode`` 4, 5; ``Generate`` 1,
2, 5 in the same pages and state slot; ``Move`` leads from 5 to 3, and another worker goes on. All
queues are in the worker's room (room.py).

A round is a decode step of all that run, then a bounded batch of prompts: two batches and not a
mixed one, so that a token is computed by the same kernels whatever else arrives. A long batch of
prompts is computed beside steps where the engine can do that (engine/overlap.py). What the queues
share is memory: a prompt or a transfer is admitted only while a page is left for every sequence
that will grow, and when pages run out the youngest of them is preempted before an older running
sequence.
"""

from transport.wire.reports import WorkerGauges
from transport.wire.session import Lost, Session, Work
from worker.decode_steps import UNDECIDED, DecodeSteps, PlannedStep
from worker.handoff import COPY_WAIT_S, Handoffs, offer_of
from worker.launches import Launches, PromptBatches
from worker.orders import Intake, Orders
from worker.room import Room
from worker.spread.group import Alone, Group
from worker.turns import Turns

LOOK_S = 0.001
"""How often to look whether prompts end soon."""
IDLE_S = 60.0
SAVING_S = 0.01
"""How long a wait for a message may be while host memory is being written, which takes as long."""


class Worker:
    """Computes the requests in ``room``, as the orders that ``session`` brings say. Decode steps
    are this worker's own, or those of its spread ``group``."""

    def __init__(self, room: Room, session: Session, group: Group | None = None) -> None:
        self._room = room
        self._session = session
        self._group = group = group or Alone()
        self._lookahead = room.settings.lookahead
        self._launches = Launches(room.sequences.aborted, group.aborted, room.clock)
        self._steps = DecodeSteps(room, self._launches, group)
        self._batches = PromptBatches(room, self._launches, lambda: session.targets)
        self._turns = Turns(room, group, self._steps, self._batches)
        handoffs = Handoffs(room)
        self._intake = Intake(room, session, handoffs)
        self._orders = Orders(session, room, self._intake, handoffs, self._steps)
        self._stalled = False

    # ---- one round

    def round(self, max_wait_s: float) -> None:
        """One round. Without work it waits for an order, at most ``max_wait_s``."""
        self._orders.receive(min(max_wait_s, self.wait_s()))
        self.step()
        if self._session.welcomed:
            self.publish_prefixes()

    def step(self) -> None:
        """The round behind ``receive``; returns at once without work."""
        room, group = self._room, self._group
        self._intake.admit()
        if self._waits_for_handoff:
            room.publish_scheduled()
            return
        held = self._turns.prompts_wait
        batch = self._batches.schedule() if self._turns.prompts_are_next(held) else None
        if batch is None and self._turns.steps_wait:
            room.publish_scheduled()
            return
        step = None
        if batch is None:
            step = self._steps.schedule(willing=self._turns.shares_next_step(held))
        if isinstance(step, PlannedStep):
            self._steps.launch(step)
            self._launches.process(behind=self._lookahead)
        room.publish_scheduled()
        if step == UNDECIDED:
            self._launches.process_done()
            return
        if batch is None and not held:
            batch = self._batches.schedule()
        if batch is not None:
            group.before_prompts()
            self._batches.launch(batch)
            group.behind_prompts()  # before this waits for the GPU
        idle = step is None and batch is None
        self._stalled = idle and not self._under_way
        # A batch that is not overlapped waits behind the group's steps, so those are processed.
        unread = self._batches.overlapped and self._launches.any_spread
        self._launches.process(behind=0 if idle or unread else self._lookahead)
        self._batches.overlapped.advance(wait=idle)
        self._offer_settled()
        room.expire_offers()
        if idle:
            willing = not room.prompts.has_work
            group.when_idle(room.allocator, willing=willing, empty=self.empty)

    @property
    def _waits_for_handoff(self) -> bool:
        """True if a handoff was announced, while a step is computed. The next one is launched when
        that is done, with the sequences that come until then: not behind it without them."""
        announced = self._orders.awake_s > 0
        return announced and self._launches.is_computing and not self._steps.undecided

    def _offer_settled(self) -> None:
        """Offer the sequences that are to move and whose states have all their tokens."""
        room = self._room
        for sequence in room.sequences.take_settled():
            room.offers.add(sequence, room.clock())
            room.reports.settled(sequence, offer_of(room, sequence))

    def publish_prefixes(self) -> None:
        """Tell the coordinator which prefixes are kept, if that has changed."""
        self._room.prefixes.publish(self._session.send)

    def wait_s(self) -> float:
        """How long the next round may wait for an order: 0 with work at hand."""
        room = self._room
        if self._steps.undecided or self._waits_for_handoff:
            return 0.0
        if self._turns.steps_wait:
            return LOOK_S
        has_work = room.sequences.has_work or room.prompts.has_work
        if not self._under_way and room.copying and (self._stalled or not has_work):
            room.wait_for_copies(COPY_WAIT_S)
            return 0.0
        if self._under_way or has_work:
            return 0.0
        idle_s = SAVING_S if room.prefixes.host.copying else IDLE_S
        return min(idle_s, self._group.look_s)

    # ---- what the life around it says and asks (loop.py)

    def handle(self, message: Work | Lost) -> None:
        """Handle an order of the coordinator, or its loss."""
        self._orders.handle(message)

    def fail_all(self) -> None:
        """Report every request as failed at the deadline of a drain, to be retried elsewhere."""
        self._orders.fail_all()

    def close(self) -> None:
        """End all copies: nothing writes the cache after this."""
        self._intake.close()
        self._room.prefixes.close()

    @property
    def awake_s(self) -> float:
        """How long the next round waits without sleep, if it has nothing to compute."""
        return self._orders.awake_s

    def held(self) -> tuple[tuple[str, int], ...]:
        """(request id, attempt) of every request not ended here."""
        return tuple(sequence.key for sequence in self._room.held())

    @property
    def ready(self) -> bool:
        """True if it can take part in serving. A worker that pulls handoffs needs a peer for that,
        or prompts to compute itself."""
        room = self._room
        fed = room.transfers.handing_off or room.active()
        return not room.settings.capabilities.pulls or bool(fed)

    @property
    def empty(self) -> bool:
        """True if nothing is under way or waits."""
        under_way = self._under_way or self._steps.undecided or self._room.copying
        return not (under_way or self._room.held())

    @property
    def _under_way(self) -> bool:
        return bool(self._launches or self._batches.overlapped)

    def gauges(self) -> WorkerGauges:
        """The numbers of the next heartbeat."""
        group = self._group
        return self._room.gauges(
            self._orders.stale_dropped, self._batches.counts,
            self._batches.overlapped.steps_share, group.counts(), group.trial_memory,
        )  # fmt: skip
