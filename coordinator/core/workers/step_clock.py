"""Times a worker's decode steps, by when their tokens come. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class _Steps:
    """Steps of about as many sequences."""

    num_steps: int = 0
    num_sequences: int = 0
    """In all steps."""
    seconds: float = 0.0
    """How long a sequence waited for each token, summed over the steps."""


class StepClock:
    """Times the step between two messages with tokens. Not counted: a step behind which no sequence
    went on, and one beside prompts."""

    def __init__(self) -> None:
        self._at: float | None = None
        """When the last step ended; None if more than a step lies behind it."""
        self._num_prompt = 0
        self._by_bucket: dict[int, _Steps] = {}

    def note(
        self,
        num_sequences: int,
        num_tokens: int,
        now: float,
        *,
        num_prompt: int,
        has_prompts: bool,
        goes_on: bool,
    ) -> None:
        """Count a step that gave ``num_tokens`` to ``num_sequences``. ``num_prompt``: the prompt
        tokens that the worker has computed so far. ``goes_on``: it has sequences for another
        step."""
        alone = num_prompt == self._num_prompt and not has_prompts
        if self._at is not None and alone and num_tokens:
            steps = self._by_bucket.setdefault(num_sequences.bit_length(), _Steps())
            steps.num_steps += 1
            steps.num_sequences += num_sequences
            steps.seconds += (now - self._at) * num_sequences / num_tokens
        self._at = now if goes_on and not has_prompts else None
        self._num_prompt = num_prompt

    def taken(self) -> Iterator[tuple[float, float]]:
        """The steps since the last call: sequences and seconds a token, both in the mean, of steps
        with about as many sequences."""
        found, self._by_bucket = self._by_bucket, {}
        for steps in found.values():
            yield steps.num_sequences / steps.num_steps, steps.seconds / steps.num_steps
