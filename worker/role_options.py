"""The options of each role's command line, beside those of every worker (options.py)."""

from dataclasses import dataclass
from typing import Annotated

from engine.config import PROMPT_TOKENS, Device
from prefill.limits import PrefillLimits, RoundLimits
from transport.wire.layout import CHUNK_ALIGNMENT
from worker.options import Options, option

BATCH_TOKENS = {"cpu": 2048, "cuda": PROMPT_TOKENS}
STANDBY_ROWS = 16
"""The most prompts of a batch at a decode worker, which computes prompts only while no prefill
worker does."""

AnyRole = Annotated[
    bool,
    option(
        "BATON_ANY_ROLE",
        "Take the role that the coordinator assigns, prefill or decode; this one is the first.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class PromptOptions(Options):
    """The options of the roles that compute every prompt."""

    max_batch_tokens: Annotated[
        int,
        option("BATON_MAX_BATCH_TOKENS", "Prompt tokens a batch; 0: 8192 on a GPU, 2048 on a CPU."),
    ] = 0
    max_batch_rows: Annotated[int, option("BATON_MAX_BATCH_ROWS", "Prompts a batch.")] = 16

    def _prompts(self, device: Device) -> PrefillLimits:
        return PrefillLimits(self.max_batch_tokens or BATCH_TOKENS[device], self.max_batch_rows)

    def _max_prompt_tokens(self) -> int:
        return self.max_batch_tokens or PROMPT_TOKENS


@dataclass(frozen=True, kw_only=True)
class PrefillOptions(PromptOptions):
    """Compute prompts and offer their cache to decode workers."""

    role = "prefill"

    any_role: AnyRole = False

    def _limits(self, device: Device) -> RoundLimits:
        return RoundLimits(self._prompts(device), self.max_tokens_beside_decode)

    def _any_role(self) -> bool:
        return self.any_role


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(Options):
    """Pull finished prompts from prefill workers and decode them. While no prefill worker takes
    work, compute prompts too."""

    role = "decode"

    any_role: AnyRole = False

    def _limits(self, device: Device) -> RoundLimits:
        tokens = self.max_tokens_beside_decode
        # In a burst too, other sequences are decoded here, unless the role is assigned.
        most = BATCH_TOKENS[device] if self.any_role else max(tokens, CHUNK_ALIGNMENT)
        return RoundLimits(PrefillLimits(most, STANDBY_ROWS), tokens)

    def _any_role(self) -> bool:
        return self.any_role


@dataclass(frozen=True, kw_only=True)
class ColocatedOptions(PromptOptions):
    """Compute prompts and decode them, on the same device."""

    role = "colocated"

    def _limits(self, device: Device) -> RoundLimits:
        return RoundLimits(self._prompts(device), self.max_tokens_beside_decode)
