"""How many multiprocessors decode steps have while prompts are computed beside them. Pure.

The fewer they have, the sooner prompts end and the later each next token comes. How long both would
take with another share is predicted from how long the last ones took with theirs. Of the shares
that keep both targets the smallest is chosen, so that prompts are as fast as steps allow. If no
share keeps both, the chosen one exceeds them by the smallest factor. That may be none: then the
whole GPU computes prompts between steps, which ends a long queue soonest.
"""

from collections.abc import Iterable
from typing import Protocol

from transport.wire.messages import Targets

EXPONENT = 0.8
"""A step takes ``n ** -EXPONENT`` of the time with n times the multiprocessors: it waits for memory
too. Within 13 % with 8 and 32 sequences on an H200 (docs/disaggregation.md)."""
LEAST_TOKENS = 1_024
"""A batch of fewer prompt tokens says little about the time of each."""


class Divided(Protocol):
    """A GPU that steps can have ``shares`` of, of ``total`` multiprocessors (engine/overlap.py)."""

    total: int
    shares: tuple[int, ...]


class Shares:
    """Chooses the steps' share of the multiprocessors for each batch of prompts beside them.
    ``step_s``: how long the last step took."""

    def __init__(self, gpu: Divided | None) -> None:
        self.step_s = 0.0
        self._total, self._shares = (gpu.total, gpu.shares) if gpu is not None else (1, ())
        # With all multiprocessors.
        self._whole_step_s, self._tokens_each = 0.0, 1.0
        self._prompt_token_s = 0.0

    def record_step(self, took_s: float, num_multiprocessors: int, tokens_each: float) -> None:
        """Note how long a step took, which gave each sequence ``tokens_each``."""
        self.step_s, self._tokens_each = took_s, max(1.0, tokens_each)
        self._whole_step_s = took_s * (num_multiprocessors / self._total) ** EXPONENT

    def record_prompts(self, took_s: float, num_multiprocessors: int, num_tokens: int) -> None:
        """Note how long a batch of prompts took, if it says enough."""
        if num_tokens >= LEAST_TOKENS:
            self._prompt_token_s = took_s * num_multiprocessors / self._total / num_tokens

    def choose(
        self,
        waiting: Iterable[tuple[float, int]],
        targets: Targets,
        *,
        num_ahead: int,
        num_between: int,
    ) -> int:
        """The share beside the next batch of prompts; 0: prompts are computed between steps, up to
        ``num_between`` tokens at a time.

        ``waiting``: the prompts without a first token, oldest first: how long each has waited, and
        its tokens that no batch has yet. ``num_ahead``: the tokens of the batches under way.
        """
        waits, num_tokens = list[tuple[float, int]](), num_ahead
        for waited_s, num_left in waiting:
            num_tokens += num_left
            waits.append((waited_s, num_tokens))

        def excess(share: int) -> float:
            step_s, token_s = self._with_share(share) if share else self._between(num_between)
            tpot_s = step_s / self._tokens_each
            ttft_s = max((waited_s + num * token_s for waited_s, num in waits), default=0.0)
            return max(1.0, tpot_s / targets.tpot_s, ttft_s / targets.ttft_s)

        return min((*self._shares, 0) if self._prompt_token_s else self._shares, key=excess)

    def _with_share(self, share: int) -> tuple[float, float]:
        """Seconds of a step, and of a prompt's token beside it."""
        step_s: float = self._whole_step_s * (self._total / share) ** EXPONENT
        return step_s, self._prompt_token_s * self._total / (self._total - share)

    def _between(self, num_tokens: int) -> tuple[float, float]:
        """Seconds from one step to the next with so many prompt tokens between them, and of each of
        these."""
        both_s = self._whole_step_s + self._prompt_token_s * num_tokens
        return both_s, both_s / num_tokens
