"""What a simulation is given: the times of GPUs, and the requests that they serve."""

from dataclasses import dataclass

from bench.predict.steps import Slower, Steps
from decode.spread_table import Curve

SHORT_LEN, CONTEXT_LEN = 1_024, 1_536
"""Tokens of the prompts, and mean tokens of the sequences, whose times the tables have."""

SHARED_READ = 0.38
"""What a token of context that all sequences of a step share takes, as a share of the time of one
that they do not: on an H100 with 32 sequences behind 57,600 shared tokens
(h100-shared-contexts.json)."""


@dataclass(frozen=True)
class Node:
    """Times of GPUs and of the paths between them, in seconds.

    ``prefill_s``: of a batch, over its tokens, of prompts of ``SHORT_LEN``. ``attention_s``: of a
    new token, for each earlier token of a longer prompt. ``context_s``: of a decode step, for each
    token of a sequence beyond ``CONTEXT_LEN``. ``way_s``: of a request to its worker and of its
    first token back. ``handoff_s``: from the first token to the begin of the decode step with the
    sequence. The defaults are for H200s: a request alone has its first token after 32 ms, 26.4 for
    its prompt, and a step takes 2.6 of the 5.6 ms to its second token."""

    prefill_s: Curve
    steps: Steps
    way_s: float = 0.005
    admit_s: float = 0.0005
    handoff_s: float = 0.003
    attention_s: float = 0.0
    context_s: float = 0.0

    def slower(self, factor: float) -> "Node":
        """This node, if everything took ``factor`` times as long."""
        return Node(
            [(tokens, factor * seconds) for tokens, seconds in self.prefill_s],
            Slower(self.steps, factor),
            *(factor * each for each in (self.way_s, self.admit_s, self.handoff_s)),
            *(factor * each for each in (self.attention_s, self.context_s)),
        )


@dataclass(frozen=True)
class Level:
    """A level: ``requests`` in all, ``at_once`` of them open at a time."""

    at_once: int
    requests: int
    input_len: int = 1024
    output_len: int = 1024
    cached_len: int = 0


@dataclass(eq=False)
class Request:
    """A request and its times, in seconds from the beginning. ``cached_len``: tokens of its prompt
    that are not to be computed. ``shared_len``: tokens that all requests begin with; a decode step
    reads them once for all."""

    input_len: int
    output_len: int
    cached_len: int = 0
    shared_len: int = 0
    sent_at: float = 0.0
    first_token_at: float = 0.0
    ended_at: float = 0.0
    num_computed: int = 0

    def __post_init__(self) -> None:
        self.num_computed = self.cached_len

    @property
    def num_new(self) -> int:
        """Prompt tokens that are still to be computed."""
        return self.input_len - self.num_computed

    @property
    def more_context(self) -> int:
        """Tokens of context that a decode step reads for it, in the mean, beyond those of
        ``CONTEXT_LEN``."""
        shared = round((1 - SHARED_READ) * self.shared_len)
        return self.input_len + self.output_len // 2 - shared - CONTEXT_LEN

    @property
    def ttft_s(self) -> float:
        return self.first_token_at - self.sent_at

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first one."""
        return (self.ended_at - self.first_token_at) / max(1, self.output_len - 1)
