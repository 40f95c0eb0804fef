"""Settings of a load: arrivals in an open loop with the targets that judge them, or agents."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from typer import Option

from bench.harness.agents.settings import AgentSettings
from bench.harness.figures.goodput import Slo
from bench.harness.workload.plan import Lengths
from bench.harness.workload.traces import Trace

SHARES = (0.9, 0.99)
_ABOVE_0 = ("rate", "duration_s", "tolerance", "slo_ttft_ms", "slo_tpot_ms")
_LEAST_1 = (
    "requests", "max_input_len", "max_output_len", "max_trials", "least_requests", "max_under_way",
)  # fmt: skip


_INPUT, _OUTPUT = Lengths(1024, 1024), Lengths(128, 128)


@dataclass(frozen=True, kw_only=True)
class LoadSettings(AgentSettings):
    """``rate``: requests per second, of Poisson arrivals or of a trace (None: the trace's own
    pace); for agents, how many begin per second (None: all at once). ``duration_s`` and
    ``requests`` both limit a run of arrivals; one may be None. ``max_under_way``: the load on a
    server that is always full, as many clients in a closed loop make it, with a trace's shapes."""

    rate: Annotated[
        float | None,
        Option(help="Requests a second: Poisson, or what a trace is paced to. Agents that begin."),
    ] = None
    trace: Annotated[
        Trace | None, Option(help="Mooncake or Bailian JSONL, Azure CSV."), Trace.read
    ] = None
    sweep: Annotated[bool, Option("--sweep", help="Find the goodput, beginning at --rate.")] = False
    duration_s: Annotated[float | None, Option(help="Seconds of arrivals a run.")] = 60.0
    requests: Annotated[int | None, Option(help="At most this many requests a run.")] = None
    max_under_way: Annotated[
        int | None, Option(help="Leave out requests that come while so many are under way.")
    ] = None
    input_len: Annotated[
        Lengths, Option(help="Poisson: N or LOW-HIGH tokens in; 1024."), Lengths.parse
    ] = _INPUT
    max_input_len: Annotated[int | None, Option(help="Cut longer prompts.")] = None
    max_output_len: Annotated[int | None, Option(help="Cut longer answers.")] = None
    slo_ttft_ms: Annotated[float, Option(help="Target for TTFT.")] = 2000.0
    slo_tpot_ms: Annotated[float, Option(help="Target for TPOT.")] = 50.0
    tolerance: Annotated[float, Option(help="Sweep: relative gap to stop at.")] = 0.1
    max_trials: Annotated[int, Option(help="Sweep: rates tried at most.")] = 24
    least_requests: Annotated[int, Option(help="Sweep: requests a rate at least.")] = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trace is None and self.rate is None and self.agents is None:
            raise ValueError("rate: neither a rate nor a trace is given, nor agents")
        if self.agents is not None and (self.trace or self.sweep or self.requests):
            raise ValueError("agents: not together with trace, sweep or requests")
        if self.max_under_way is not None and (self.agents is not None or self.sweep):
            raise ValueError("max_under_way: not together with agents or sweep")
        if self.sweep and self.rate is None:
            raise ValueError("rate: a sweep needs the first rate to try")
        self.require_above_0(*_ABOVE_0)
        self.require_at_least(1, *_LEAST_1)
        if self.requests is None and self.duration_s is None and self.trace is None:
            raise ValueError("duration_s: Poisson arrivals never end without it or requests")

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "agents" if self.agents is not None else "sweep" if self.sweep else "load"

    @property
    def answer_len(self) -> Lengths:
        """Tokens of the answers to Poisson arrivals."""
        return self.output_len or _OUTPUT

    @property
    def slo(self) -> Slo:
        return Slo(self.slo_ttft_ms / 1000, self.slo_tpot_ms / 1000)

    def json(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["slo"] = {"ttft_ms": found.pop("slo_ttft_ms"), "tpot_ms": found.pop("slo_tpot_ms")}
        del found["input_len"], found["output_len"]
        answers = self.shape.output_len if self.agents else self.answer_len
        found["inputs"] = [self.input_len.low, self.input_len.high]
        found["outputs"] = [answers.low, answers.high]
        return found | self.shape_json() | {"trace": self.trace and self.trace.name}
