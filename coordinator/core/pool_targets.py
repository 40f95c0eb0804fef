"""The times that requests shall keep, by which the pools follow the load. A request may ask for
longer ones."""

from collections.abc import Iterable
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

    def strictest(self, asked: Iterable[tuple[float, float]]) -> "PoolTargets":
        """The shortest times of all open requests. ``asked``: by each; a shorter time than these
        counts as these. These, if no request is open."""
        ttfts_s, tpots_s = list[float](), list[float]()
        for ttft_s, tpot_s in asked:
            ttfts_s.append(max(self.ttft_s, ttft_s))
            tpots_s.append(max(self.tpot_s, tpot_s))
        return PoolTargets(min(ttfts_s, default=self.ttft_s), min(tpots_s, default=self.tpot_s))


def _require_time(name: str, value: float) -> None:
    if not 0 < value < inf:
        raise ValueError(f"{name}: {value} is not a time above 0")
