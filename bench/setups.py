"""Set-ups of pools by name: ``split:P+D`` has P prefill and D decode workers, ``colocated:N`` (once
``both:N``) has N workers that do both."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Setup:
    """``num_prefill`` 0: each of ``num_decode`` workers also computes prompts."""

    num_prefill: int
    num_decode: int

    @classmethod
    def parse(cls, text: str) -> "Setup":
        """Parse a name. Raises ValueError."""
        if found := re.fullmatch(r"split:([1-9]\d*)\+([1-9]\d*)", text):
            return cls(int(found[1]), int(found[2]))
        if found := re.fullmatch(r"(?:colocated|both):([1-9]\d*)", text):
            return cls(0, int(found[1]))
        raise ValueError(f"--setup: {text!r} is neither split:P+D nor colocated:N")

    @property
    def num_workers(self) -> int:
        return self.num_prefill + self.num_decode

    @property
    def name(self) -> str:
        if self.num_prefill:
            return f"split:{self.num_prefill}+{self.num_decode}"
        return f"colocated:{self.num_decode}"

    def arguments(self) -> list[str]:
        """The arguments of ``baton up`` for this set-up."""
        if self.num_prefill:
            pools = ["--prefill", str(self.num_prefill), "--decode", str(self.num_decode)]
            return ["--role", "split", "--pools", "fixed", *pools]
        return ["--role", "colocated", "--workers", str(self.num_decode)]
