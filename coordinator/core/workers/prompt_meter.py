"""How fast a worker computes prompts, by when its first tokens came. Pure."""

from math import inf

MEMORY_S = 20.0
MEMORY_TOKENS = 1_000_000
"""Work of so many seconds and tokens counts in full; older work counts less and less."""


class PromptMeter:
    """The work of one worker. Prompts are computed in turn: one takes from its assignment, or the
    end of the one before if that is later, to its first token."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.num_timed = 0.0
        """Tokens computed in ``busy_s``."""
        self.num_computed = 0.0
        self.num_prompt = 0.0
        """Tokens of all prompts, with those that were not computed but reused."""
        self.ended_at = -inf
        """When the last one had its first token."""

    def ended(
        self, num_computed: int, num_prompt: int, assigned_at: float, now: float, *, alone: bool
    ) -> None:
        """Count a prompt whose first token has come. ``alone``: no sequence was decoded beside it.
        Only such prompts are timed."""
        if alone:
            self.busy_s += max(0.0, now - max(assigned_at, self.ended_at))
            self.num_timed += num_computed
        self.num_computed += num_computed
        self.num_prompt += num_prompt
        self.ended_at = now
        if self.busy_s > MEMORY_S:
            self.busy_s, self.num_timed = self.busy_s / 2, self.num_timed / 2
        if self.num_prompt > MEMORY_TOKENS:
            self.num_computed, self.num_prompt = self.num_computed / 2, self.num_prompt / 2
