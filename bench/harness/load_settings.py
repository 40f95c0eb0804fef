"""What an open-loop run sends, and by which targets it is judged."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from typer import Option

from bench.harness.figures.goodput import Slo
from bench.harness.options import Settings, json_object
from bench.harness.workload.plan import Lengths
from bench.harness.workload.traces import Trace

SHARES = (0.9, 0.99)
_ABOVE_0 = ("rate", "duration_s", "tolerance")
_LEAST_1 = ("requests", "max_input_len", "max_output_len", "max_trials", "least_requests")


_INPUT, _OUTPUT = Lengths(1024, 1024), Lengths(128, 128)


@dataclass(frozen=True)
class LoadSettings(Settings):
    """``rate`` in requests a second: of Poisson arrivals, or what a trace is paced to (None: as it
    was). ``duration_s`` and ``requests`` both limit a run from above; one may be None."""

    seed: Annotated[int | None, Option(help="Fresh if not given.")] = None
    rate: Annotated[
        float | None, Option(help="Requests a second: Poisson, or what a trace is paced to.")
    ] = None
    trace: Annotated[
        Trace | None, Option(help="Mooncake or Bailian JSONL, Azure CSV."), Trace.read
    ] = None
    sweep: Annotated[bool, Option("--sweep", help="Find the goodput, beginning at --rate.")] = False
    duration_s: Annotated[float | None, Option(help="Seconds of arrivals a run.")] = 60.0
    requests: Annotated[int | None, Option(help="At most this many requests a run.")] = None
    input_len: Annotated[
        Lengths, Option(help="Poisson: N or LOW-HIGH tokens in; 1024."), Lengths.parse
    ] = _INPUT
    output_len: Annotated[
        Lengths, Option(help="Poisson: N or LOW-HIGH tokens out; 128."), Lengths.parse
    ] = _OUTPUT
    max_input_len: Annotated[int | None, Option(help="Cut longer prompts.")] = None
    max_output_len: Annotated[int | None, Option(help="Cut longer answers.")] = None
    slo_ttft_ms: Annotated[float, Option(help="Target for TTFT.")] = 2000.0
    slo_tpot_ms: Annotated[float, Option(help="Target for TPOT.")] = 50.0
    tolerance: Annotated[float, Option(help="Sweep: relative gap to stop at.")] = 0.1
    max_trials: Annotated[int, Option(help="Sweep: rates tried at most, a share.")] = 12
    least_requests: Annotated[int, Option(help="Sweep: requests a rate at least.")] = 100
    warm_ups: Annotated[int, Option(help="Requests before, not counted.")] = 2
    prompt_as: Annotated[
        Literal["text", "ids"], Option(help="ids: exact where blocks are shared.")
    ] = "text"
    temperature: Annotated[float, Option(help="Of every request.")] = 1.0
    ignore_eos: Annotated[bool, Option(help="Go on to the planned length.")] = True
    return_token_ids: Annotated[
        bool, Option("--token-ids/--no-token-ids", help="Ask for token ids (an extension).")
    ] = True
    exact: Annotated[
        bool | None, Option(help="Another length is a failure; default: with --ignore-eos.")
    ] = None
    extra_body: Annotated[
        Mapping[str, Any], Option(help="JSON object added to every request."), json_object
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbelow(2**32))
        assert self.slo
        if self.trace is None and self.rate is None:
            raise ValueError("rate: neither a rate nor a trace is given")
        if self.sweep and self.rate is None:
            raise ValueError("rate: a sweep needs the first rate to try")
        for name in (*_ABOVE_0, *_LEAST_1):
            value, least = getattr(self, name), "above 0" if name in _ABOVE_0 else "at least 1"
            if value is not None and (value <= 0 or (name in _LEAST_1 and value < 1)):
                raise ValueError(f"{name}: {value} is not {least}")
        if self.requests is None and self.duration_s is None and self.trace is None:
            raise ValueError("duration_s: Poisson arrivals never end without it or requests")
        if self.warm_ups < 0:
            raise ValueError(f"warm_ups: {self.warm_ups} is not at least 0")

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "sweep" if self.sweep else "load"

    @property
    def slo(self) -> Slo:
        return Slo(self.slo_ttft_ms / 1000, self.slo_tpot_ms / 1000)

    def fields(self) -> dict[str, Any]:
        """Fields of every request."""
        ids = {"return_token_ids": True} if self.return_token_ids else {}
        fixed = {"temperature": self.temperature, "ignore_eos": self.ignore_eos}
        return {**fixed, "exact": self.exact, **ids, **self.extra_body}

    def json(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["slo"] = {"ttft_ms": found.pop("slo_ttft_ms"), "tpot_ms": found.pop("slo_tpot_ms")}
        for name in ("input", "output"):
            lengths: Lengths = found.pop(f"{name}_len")
            found[f"{name}s"] = [lengths.low, lengths.high]
        return found | {"trace": self.trace and self.trace.name}
