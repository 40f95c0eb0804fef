"""The times that requests shall keep, by which the pools follow the load."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class PoolTargets:
    """What a request shall keep, in seconds. Raises ValueError."""

    ttft_s: float = 2.0
    tpot_s: float = 0.05

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _require_time(name, value)

    @classmethod
    def of_ms(cls, ttft_ms: float, tpot_ms: float, *, names: tuple[str, str]) -> "PoolTargets":
        """Targets in milliseconds. Raises ValueError with a setting's name, of ``names``."""
        for name, value in zip(names, (ttft_ms, tpot_ms), strict=True):
            _require_time(name, value)
        return cls(ttft_ms / 1e3, tpot_ms / 1e3)


def _require_time(name: str, value: float) -> None:
    if not 0 < value < inf:
        raise ValueError(f"{name}: {value} is not a time above 0")
