"""How fast a worker computes prompts. Pure.

By its own times of batches of ``MANY_TOKENS``. Where it has computed none, by when its first tokens
came.
"""

from dataclasses import dataclass
from math import inf

from transport.wire.reports import MANY_TOKENS, PromptCounts

MEMORY_S = 20.0
MEMORY_TOKENS = 1_000_000
"""Work of so many seconds and tokens counts in full; older work counts less and less."""
NEWEST = 0.2
"""The share of the newest prompt in the mean length."""


@dataclass
class Work:
    """Prompt tokens, and the seconds in which they were computed."""

    num_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, num_tokens: float, seconds: float) -> None:
        """Count more; what is older than MEMORY_S counts less."""
        self.num_tokens += num_tokens
        self.seconds += seconds
        if self.seconds > MEMORY_S:
            self.num_tokens, self.seconds = self.num_tokens / 2, self.seconds / 2


class PromptMeter:
    """The work of one worker. Prompts are computed in turn: one takes from its assignment, or the
    end of the one before if that is later, to its first token."""

    def __init__(self) -> None:
        self.batches = Work()
        """Batches of many tokens, as the worker has timed them."""
        self._counts: PromptCounts | None = None
        self.timed = Work()
        self.timed_busy = Work()
        """Only stretches of at least MANY_TOKENS in which the worker had prompts all the time."""
        self._stretch = Work()
        self.num_computed = 0.0
        self.num_prompt = 0.0
        """Tokens of all prompts, with those that were not computed but reused."""
        self.mean_len = 0.0
        """Tokens that were computed of a prompt, in the mean, of the newest ones most."""
        self.ended_at = -inf
        """When the last one had its first token."""

    def note_batches(self, counts: PromptCounts) -> None:
        """Store the counts of a heartbeat. The first ones are of batches from any time."""
        before, self._counts = self._counts, counts
        if before is not None and counts.num_tokens > before.num_tokens:
            more_s = max(0.0, counts.seconds - before.seconds)
            self.batches.add(counts.num_tokens - before.num_tokens, more_s)

    def ended(
        self, num_computed: int, num_prompt: int, assigned_at: float, now: float, *, alone: bool
    ) -> None:
        """Count a prompt whose first token has come. ``alone``: no sequence was decoded beside it.
        Only such prompts are timed."""
        if assigned_at > self.ended_at or not alone:
            self._stretch = Work()
        if alone:
            seconds = max(0.0, now - max(assigned_at, self.ended_at))
            self.timed.add(num_computed, seconds)
            self._stretch.add(num_computed, seconds)
        if self._stretch.num_tokens >= MANY_TOKENS:
            self.timed_busy.add(self._stretch.num_tokens, self._stretch.seconds)
            self._stretch = Work()
        newest = NEWEST if self.num_prompt else 1.0
        self.mean_len += newest * (num_computed - self.mean_len)
        self.num_computed += num_computed
        self.num_prompt += num_prompt
        self.ended_at = now
        if self.num_prompt > MEMORY_TOKENS:
            self.num_computed, self.num_prompt = self.num_computed / 2, self.num_prompt / 2


def tok_s(meters: list[PromptMeter]) -> float:
    """Prompt tokens that a worker computes a second while it is busy, or at all where none has been
    busy yet; 0 without any."""
    batches, busy = [meter.batches for meter in meters], [meter.timed_busy for meter in meters]
    for works in (batches, busy, [meter.timed for meter in meters]):
        if seconds := sum(work.seconds for work in works):
            return sum(work.num_tokens for work in works) / seconds
    return 0.0
