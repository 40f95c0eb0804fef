"""Limits on the prompt tokens that a worker of any role computes per round."""

from dataclasses import dataclass

from transport.wire.layout import CHUNK_ALIGNMENT


@dataclass(frozen=True)
class PrefillLimits:
    """Limits of one batch: ``max_batch_tokens`` tokens of ``max_batch_rows`` prompts."""

    max_batch_tokens: int
    max_batch_rows: int

    def __post_init__(self) -> None:
        if self.max_batch_tokens < CHUNK_ALIGNMENT:
            raise ValueError(f"max_batch_tokens: {self.max_batch_tokens} < {CHUNK_ALIGNMENT}")
        if self.max_batch_rows < 1:
            raise ValueError(f"max_batch_rows: {self.max_batch_rows} < 1")


@dataclass(frozen=True)
class RoundLimits:
    """Limits of the batch of prompts of a round. ``prompts`` always applies. While sequences are
    decoded a batch has at most ``max_tokens_beside_decode`` tokens, which bounds how long they wait
    for their next token.

    That second bound is off in a burst, when several prompts wait, and more than an eighth as many
    as sequences run: small batches, with a step behind each, take twice the time per token, so
    every request would end later.
    """

    prompts: PrefillLimits
    max_tokens_beside_decode: int

    def __post_init__(self) -> None:
        if self.max_tokens_beside_decode < CHUNK_ALIGNMENT:
            raise ValueError(
                f"max_tokens_beside_decode: {self.max_tokens_beside_decode} < {CHUNK_ALIGNMENT}"
            )

    def overlaps(self, *, num_running: int, num_waiting: int) -> bool:
        """True if prompts are worth computing beside steps, where the worker can. While more than
        twice as many prompts wait as sequences run, the steps have too little to do for a part of
        the GPU of their own."""
        return 0 < num_waiting <= 2 * num_running

    def max_tokens(self, *, num_running: int, num_waiting: int) -> int:
        """The most prompt tokens of the next round; ``num_waiting`` prompts have no first token."""
        burst = num_waiting > 1 and 8 * num_waiting > num_running
        if num_running == 0 or burst:
            return self.prompts.max_batch_tokens
        return min(self.max_tokens_beside_decode, self.prompts.max_batch_tokens)
