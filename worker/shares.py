"""How many multiprocessors decode steps have while prompts are computed beside them. Pure.

The fewer they have, the sooner prompts end and the later each next token comes. How long both would
take with another share is predicted from how long the last ones took with theirs. Of the shares
that keep both targets the smallest is chosen, so that prompts are as fast as steps allow. If no
share keeps both, the chosen one exceeds them by the smallest factor.
"""

from collections.abc import Iterable
from typing import Protocol

from transport.wire.messages import Targets
from transport.wire.reports import MANY_TOKENS

EXPONENT = 0.8
"""A step takes ``n ** -EXPONENT`` of the time with n times the multiprocessors: it waits for memory
too. Within 13 % with 8 and 32 sequences on an H200 (docs/disaggregation.md)."""


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
        self._token_s = 0.0
        self._prompt_token_s = 0.0

    def record_step(self, took_s: float, num_multiprocessors: int, tokens_each: float) -> None:
        """Note how long a step took, which gave each sequence ``tokens_each``."""
        self.step_s = took_s
        part = num_multiprocessors / self._total
        self._token_s = took_s * part**EXPONENT / max(1.0, tokens_each)

    def record_prompts(self, took_s: float, num_multiprocessors: int, num_tokens: int) -> None:
        """Note how long a batch of prompts took; one of few tokens says little."""
        if num_tokens < MANY_TOKENS:
            return
        self._prompt_token_s = took_s * num_multiprocessors / self._total / num_tokens

    def choose(self, num_ahead: int, waiting: Iterable[tuple[float, int]], targets: Targets) -> int:
        """The share for a batch of prompts. ``num_ahead``: the tokens of this batch and of those
        that are computed before it. ``waiting``: the prompts without a first token, oldest first:
        how long each has waited, and how many of its tokens are behind those ahead."""
        waits, num_tokens = list[tuple[float, int]](), num_ahead
        for waited_s, num_left in waiting:
            num_tokens += num_left
            waits.append((waited_s, num_tokens))

        def excess(share: int) -> float:
            tpot_s: float = self._token_s * (self._total / share) ** EXPONENT
            each_s = self._prompt_token_s * self._total / (self._total - share)
            ttft_s = max((waited + num * each_s for waited, num in waits), default=0.0)
            return max(1.0, tpot_s / targets.tpot_s, ttft_s / targets.ttft_s)

        return min(self._shares, key=excess)
