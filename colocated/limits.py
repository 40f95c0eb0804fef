"""How much of a prompt one round of a worker that does both may compute."""

from dataclasses import dataclass

from prefill.scheduler import PrefillLimits
from transport.wire.layout import CHUNK_ALIGNMENT


@dataclass(frozen=True)
class ColocatedLimits:
    """``prompts`` bounds a batch of prompts; beside running sequences it has at most
    ``max_tokens_beside_decode`` tokens, which bounds how long they wait for their next token.

    In a burst, with several prompts waiting and more than half of what runs, that bound is off:
    small batches cost twice the time a token, and all would end later, those that run too.
    """

    prompts: PrefillLimits
    max_tokens_beside_decode: int

    def __post_init__(self) -> None:
        if self.max_tokens_beside_decode < CHUNK_ALIGNMENT:
            raise ValueError(
                f"max_tokens_beside_decode: {self.max_tokens_beside_decode} < {CHUNK_ALIGNMENT}"
            )

    def max_tokens(self, *, num_running: int, num_waiting: int) -> int:
        """Prompt tokens of the next round; ``num_waiting`` prompts have no first token yet."""
        burst = num_waiting > 1 and 2 * num_waiting > num_running
        if num_running == 0 or burst:
            return self.prompts.max_batch_tokens
        return min(self.max_tokens_beside_decode, self.prompts.max_batch_tokens)
