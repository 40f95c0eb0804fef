"""The options of each role's command line, beside those of every worker (options.py)."""

from dataclasses import dataclass, replace
from typing import Annotated

from engine.config import PROMPT_TOKENS, Device
from prefill.limits import RoundLimits
from worker.options import Options, option

AnyRole = Annotated[
    bool,
    option(
        "BATON_ANY_ROLE",
        "Take the role that the coordinator assigns, prefill or decode; this one is the first.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class PrefillOptions(Options):
    """Compute prompts and offer their cache to decode workers."""

    role = "prefill"

    any_role: AnyRole = False

    def _any_role(self) -> bool:
        return self.any_role


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(Options):
    """Pull finished prompts from prefill workers and decode them. While no prefill worker takes
    work, compute prompts too."""

    role = "decode"

    any_role: AnyRole = False

    def _limits(self, device: Device) -> RoundLimits:
        limits = super()._limits(device)
        if self.any_role:
            return limits
        # In a burst too, other sequences are decoded here.
        tokens = min(limits.prompts.max_batch_tokens, limits.max_tokens_beside_decode)
        return replace(limits, prompts=replace(limits.prompts, max_batch_tokens=tokens))

    def _max_prompt_tokens(self) -> int:
        tokens = super()._max_prompt_tokens()
        return tokens if self.any_role else min(tokens, PROMPT_TOKENS)

    def _any_role(self) -> bool:
        return self.any_role


@dataclass(frozen=True, kw_only=True)
class ColocatedOptions(Options):
    """Compute prompts and decode them, on the same device."""

    role = "colocated"
