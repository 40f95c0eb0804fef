"""What an open-loop run sends, and by which targets it is judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.figures.goodput import Slo
from bench.workload.plan import Lengths

SHARES = (0.9, 0.99)


@dataclass(frozen=True)
class LoadSettings:
    """``rate`` in requests a second: of Poisson arrivals, or what a trace is paced to (None: as it
    was). ``duration_s`` and ``requests`` both limit a run from above; one may be None."""

    seed: int
    slo: Slo
    inputs: Lengths
    outputs: Lengths
    trace: str | None = None
    rate: float | None = None
    requests: int | None = None
    duration_s: float | None = 60.0
    max_input_len: int | None = None
    max_output_len: int | None = None
    warm_ups: int = 2
    prompt_as: Literal["text", "ids"] = "text"
    temperature: float = 1.0
    ignore_eos: bool = True
    return_token_ids: bool = True
    exact: bool | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    sweep: bool = False
    tolerance: float = 0.1
    max_trials: int = 12
    least_requests: int = 100

    def __post_init__(self) -> None:
        if self.trace is None and self.rate is None:
            raise ValueError("rate: neither a rate nor a trace is given")
        if self.sweep and self.rate is None:
            raise ValueError("rate: a sweep needs the first rate to try")
        for name in ("rate", "duration_s", "tolerance"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}: {value} is not above 0")
        for name in ("requests", "max_input_len", "max_output_len", "max_trials", "least_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is not at least 1")
        if self.requests is None and self.duration_s is None and self.trace is None:
            raise ValueError("duration_s: Poisson arrivals never end without it or requests")
        if self.warm_ups < 0:
            raise ValueError(f"warm_ups: {self.warm_ups} is not at least 0")

    def fields(self) -> dict[str, Any]:
        """What every request has."""
        ids = {"return_token_ids": True} if self.return_token_ids else {}
        fixed = {"temperature": self.temperature, "ignore_eos": self.ignore_eos}
        return {**fixed, "exact": self.exact, **ids, **self.extra_body}

    def json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found["slo"] = {"ttft_ms": 1000 * self.slo.ttft_s, "tpot_ms": 1000 * self.slo.tpot_s}
        for name in ("inputs", "outputs"):
            lengths: Lengths = found[name]
            found[name] = [lengths.low, lengths.high]
        return found
