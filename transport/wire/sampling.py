"""Parameters of sampling: how the next token of a sequence is chosen, and when it ends."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

FinishReason = Literal["stop", "length"]


class Constraint(Struct, frozen=True, forbid_unknown_fields=True):
    """The tokens that an output may have.

    The output begins with a thought if ``thought_end``, the id of its last token, is given. The
    thought has at most ``thought_budget`` tokens (None: any number); then ``closing_ids`` follow,
    which end with ``thought_end``. After a thought come ``answer_ids``, and then text that
    ``grammar`` allows: a grammar for llguidance, "" for any text.
    """

    grammar: str = ""
    thought_end: int | None = None
    thought_budget: int | None = None
    closing_ids: tuple[int, ...] = ()
    answer_ids: tuple[int, ...] = ()


class SamplingParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Sampling of one sequence. Validated when the HTTP request is read, and nowhere else.

    ``temperature`` 0 is greedy, ties to the lowest id. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0
    are off. ``repetition_penalty`` counts prompt and output, the other two only output.
    ``logprobs``: None is off; k returns those of the sampled token and of the k best;
    ``prompt_logprobs``: the same for the tokens of the prompt.
    ``constraint``: what the sampler may choose from; not together with ``min_tokens``.
    Randomness depends on ``seed`` and the token's position alone, so a token does not depend on
    batch, worker or retry.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0)] | None = None
    constraint: Constraint | None = None

    @property
    def has_penalties(self) -> bool:
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    @property
    def has_filters(self) -> bool:
        return self.top_k != 0 or self.top_p < 1.0 or self.min_p > 0.0


class StopRule(Struct, frozen=True, forbid_unknown_fields=True):
    """When a sequence ends by its tokens. Stop strings are found by the coordinator.

    ``stop_token_ids`` already holds the model's end-of-sequence ids unless the request
    ignores them. The sampler masks them until there are ``min_tokens`` output tokens.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()

    def finish_reason(self, *, num_output: int, token_id: int) -> FinishReason | None:
        """Why the sequence ends with ``token_id`` as its output token ``num_output`` (from 1); None
        if it goes on."""
        if token_id in self.stop_token_ids and num_output > self.min_tokens:
            return "stop"
        return "length" if num_output >= self.max_tokens else None
