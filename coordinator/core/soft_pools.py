"""Decides what crosses the border between the pools. Pure: no clock, no sockets.

A role says where prompts and sequences go first. The worker of the other role gets some too, where
that is better by the targets:

    helps     a decode worker computes a prompt beside its steps: prompts wait too long for the
              prefill workers, and its own sequences keep their pace
    keeps     a prefill worker decodes a sequence whose prompt it has computed: the steps of the
              decode workers take longer than its own, and few prompts come
    takes     a prefill worker without prompts decodes a sequence that a decode worker has decoded
    releases  a sequence of a prefill worker moves to a decode worker: prompts wait, or steps are
              faster there
    gathers   a prompt for a worker that decodes waits a little for others: computed together they
              stop the decode steps for less time

Two workers that compute steps together, a pair (docs/spread.md), have the same step. So a prefill
worker keeps no sequence there, which would only wait for prompts in addition. Its prompts are
gathered for the sequences of the other one too, whose steps take longer meanwhile. Where both do
both, what was gathered is placed at both at once: they begin with it behind the same step.

So two GPUs serve as well as two colocated ones where the load asks for that, and keep the pools
apart where it does not. Pools of a wrong size lose little until they have changed.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import exp

from coordinator.core.pool_forecast import LONG_PROMPT, SPEED_BESIDE, Speeds
from coordinator.core.pool_targets import PoolTargets

WAIT_SHARE = 0.3
"""A prefill worker whose prompts wait for a larger share of their target decodes nothing more."""
HELP_FROM, HELP_EARLY_FROM = 0.6, 0.2
"""Prompts that would wait for a smaller share wait for a prefill worker. Beside decode steps they
take longer to compute, so pools whose decode workers help early do less in all. They help early in
a burst, where more prompts wait than sequences are decoded; at once where none is."""
HELP_SHARE = 0.5
"""A decode worker helps while its sequences' time a token is below this share of its target."""
KEEP_SHARE = 0.1
"""A prefill worker keeps sequences when a decode worker's time a token is above this share."""
MARGIN = 1.15
"""A sequence stays at, or moves to, the worker whose time a token is so many times shorter."""
IDLE_S, PAIR_IDLE_S = 0.1, 1.0
"""A prefill worker takes sequences when it has had no prompts for so long; the second time is that
of a pair. Else it would take some between two prompts, and release them at the next. In a pair
other sequences lose by a move too: it takes a local step of both."""
SLOW_SHARE = 0.9
"""A kept sequence above this share moves to any decode worker with a smaller one."""
MOST_BUSY = 0.95
GATHER_FROM = 0.5
"""Prompts are gathered while the time a token at their worker is above this share of its target."""
GATHER_SHARE = 0.5
"""Share of the target of the first token that a prompt waits for others."""
GATHER_TOKENS = 8_192
"""Tokens of a full batch: no prompt waits for more."""


@dataclass(frozen=True)
class Site:
    """A worker as the decision sees it: the sequences that it decodes, and the prompt tokens that
    wait for it. ``has_lenders``: it takes spread steps, in which prefill workers share the work
    while they have neither prompts nor sequences (docs/spread.md). ``in_pair``: it takes them with
    the prefill worker, which may have sequences too."""

    worker: Hashable
    num_sequences: int
    tokens_ahead: int = 0
    has_lenders: bool = False
    in_pair: bool = False


class SoftPools:
    """Decides request by request, by the ``speeds`` of the node."""

    def __init__(self, targets: PoolTargets, speeds: Speeds) -> None:
        self._targets, self._speeds = targets, speeds
        self._given: dict[Hashable, tuple[float, float]] = {}
        """Prompt tokens that each worker was given lately, as of a time."""

    def note_prompt(self, worker: Hashable, num_tokens: int, now: float) -> None:
        """Count the tokens of a prompt that a worker was given to compute."""
        lately = {
            other: given for other, given in self._given.items() if self._recent(other, now) >= 1
        }
        self._given = lately | {worker: (self._recent(worker, now) + num_tokens, now)}

    def roles_changed(self) -> None:
        """Forget the prompts that workers were given: others will get the next ones."""
        self._given.clear()

    def new_tokens(self, num_tokens: int) -> int:
        """How many tokens of prompts are to be computed, as far as earlier ones tell."""
        return self._speeds.new_tokens(num_tokens)

    def waits(self, num_tokens: int) -> bool:
        """True if so many prompt tokens ahead of a prefill worker are a long wait."""
        return self._ttft_share(num_tokens) > WAIT_SHARE

    def may_help(self, num_waiting: int, fewest: int) -> bool:
        """False if no decode worker ``helps`` with so many prompt tokens ahead of a prefill worker.
        ``fewest``: sequences of the decode worker with the fewest."""
        share = self._ttft_share(num_waiting)
        return not self._speeds.prefill_tok_s() or share > _early_from(fewest)

    def helps(
        self,
        num_waiting: int,
        there: Site,
        num_tokens: int,
        now: float,
        asked_s: float = 0.0,
    ) -> bool:
        """True if a decode worker is to compute a prompt of ``num_tokens``, for which it would wait
        as long as ``num_waiting`` take at a prefill worker. Before the first prompt has shown the
        speed, a worker without sequences takes what would wait longer elsewhere. ``asked_s``: the
        target of its own first token, if that is longer than the others'."""
        if not self._speeds.prefill_tok_s():
            return not there.num_sequences and there.tokens_ahead + num_tokens < num_waiting
        is_burst = num_waiting > there.num_sequences * num_tokens
        least = _early_from(there.num_sequences) if is_burst else HELP_FROM
        if self._ttft_share(num_waiting, asked_s) <= least:
            return False
        if there.num_sequences and self._tpot_share(there, now, num_tokens) > HELP_SHARE:
            return False
        beside = (there.tokens_ahead + num_tokens) / SPEED_BESIDE
        return self._ttft_share(beside) < self._ttft_share(num_waiting)

    def gathers(
        self, there: Site, num_tokens: int, num_queued: int, waited_s: float, now: float
    ) -> bool:
        """True if a prompt of ``num_tokens`` that has ``waited_s`` for its worker waits for more
        prompts. ``num_queued``: prompt tokens that wait for a worker, its own included."""
        return (
            there.num_sequences > 0
            and num_tokens < LONG_PROMPT
            and num_queued < GATHER_TOKENS
            and waited_s < self.gather_s
            and self._tpot_share(there, now) > GATHER_FROM
        )

    @property
    def gather_s(self) -> float:
        """Seconds that a prompt waits for others at most."""
        return GATHER_SHARE * self._targets.ttft_s

    def keeps(self, here: Site, there: Site, now: float) -> bool:
        """True if a prefill worker is to decode the sequence that it offers, rather than the decode
        worker that would have it."""
        elsewhere = self._tpot_share(_one_more(there), now)
        return (
            not (there.has_lenders or there.in_pair)
            and elsewhere > KEEP_SHARE
            and not self.waits(here.tokens_ahead)
            and MARGIN * self._tpot_share(_one_more(here), now) < elsewhere
        )

    def takes(self, here: Site, there: Site, idle_s: float) -> bool:
        """True if a prefill worker that has had no prompts for ``idle_s`` is to decode a sequence
        that a decode worker decodes now. How many it was given before does not count: when more
        come, it releases the sequence, and a move costs few steps."""
        share = self._step_share(there.num_sequences)
        return (
            not there.has_lenders
            and share > KEEP_SHARE
            and not here.tokens_ahead
            and idle_s >= (PAIR_IDLE_S if there.in_pair else IDLE_S)
            and MARGIN * self._step_share(here.num_sequences + 1) < share
        )

    def releases(self, here: Site, there: Site, now: float) -> bool:
        """True if a sequence is to move from a prefill worker to a decode worker."""
        if there.has_lenders:
            return True
        if not here.tokens_ahead:
            more = self._step_share(there.num_sequences + 1)
            return MARGIN * more < self._step_share(here.num_sequences)
        elsewhere = self._tpot_share(_one_more(there), now)
        if there.in_pair:
            here = replace(here, num_sequences=max(here.num_sequences, there.num_sequences))
        if elsewhere < 1 and self.waits(here.tokens_ahead):
            return True
        share = self._tpot_share(here, now)
        return MARGIN * elsewhere < share or (share > SLOW_SHARE and elsewhere < share)

    def _step_share(self, num_sequences: int) -> float:
        """The time of a step as a share of the target."""
        return self._speeds.step_s(num_sequences) / self._targets.tpot_s

    def _ttft_share(self, num_tokens: float, asked_s: float = 0.0) -> float:
        """The time to compute prompt tokens as a share of the target; 0 before it is known."""
        speed = self._speeds.prefill_tok_s()
        return num_tokens / speed / max(self._targets.ttft_s, asked_s) if speed else 0.0

    def _tpot_share(self, site: Site, now: float, more: int = 0) -> float:
        """The time a token at a worker that also computes as many prompts as lately, and ``more``
        tokens, as a share of the target."""
        time_for = SPEED_BESIDE * self._speeds.prefill_tok_s() * self._speeds.answer_s()
        given = self._recent(site.worker, now) + more
        busy = min(MOST_BUSY, given / time_for) if time_for else 0.0
        return self._step_share(site.num_sequences) / (1 - busy)

    def _recent(self, worker: Hashable, now: float) -> float:
        """Over about the time of an answer: a prompt slows down only who is decoded beside it."""
        tokens, at = self._given.get(worker, (0.0, now))
        return tokens * exp((at - now) / self._speeds.answer_s())


def _one_more(site: Site) -> Site:
    return replace(site, num_sequences=site.num_sequences + 1)


def _early_from(num_sequences: int) -> float:
    """The share of the target from which prompts' wait is worth helping early."""
    return HELP_EARLY_FROM if num_sequences else 0.0
