"""The result of an open-loop run: one rate, judged by its targets."""

from dataclasses import dataclass, field
from typing import Any

from bench.harness.figures.goodput import attainment
from bench.harness.figures.outcome import Outcome
from bench.harness.figures.summary import details, problems, summary, wall
from bench.harness.load_settings import SHARES, LoadSettings
from bench.measures import spread_ms

LATE_S = 0.010


@dataclass
class Run:
    """One rate: the planned requests and their outcomes. ``num_left_out``: others, which came while
    as many were under way as the settings allow."""

    settings: LoadSettings
    rate: float
    begin_s: float
    outcomes: list[Outcome]
    num_planned: int
    num_clipped: int
    num_left_out: int = 0

    @property
    def attained(self) -> float:
        """Share of all planned requests that met both targets. Requests never sent met none."""
        share = attainment(self.outcomes, self.settings.slo) if self.outcomes else 0.0
        return share * len(self.outcomes) / self.num_planned

    def json(self) -> dict[str, Any]:
        records = [outcome.record for outcome in self.outcomes]
        late = [r.sent_at_s - r.due_at_s for r in records if r.sent_at_s is not None]
        met = sum(self.settings.slo.met(outcome) for outcome in self.outcomes)
        return {
            "rate": self.rate,
            "planned": self.num_planned,
            "clipped": self.num_clipped,
            "left_out": self.num_left_out,
            "not_sent": self.num_planned - len(self.outcomes),
            **(summary(self.outcomes) if self.outcomes else {"requests": 0, "failed": 0}),
            "attained": self.attained,
            "met": {f"{share:.0%}": self.attained >= share for share in SHARES},
            "good_requests_per_s": met / wall(self.outcomes) if self.outcomes else 0.0,
            "sent_late_ms": spread_ms(late),
            "client_was_late": sum(one > LATE_S for one in late),
        }

    def problems(self, *, refusals: bool = True) -> list[str]:
        """Failures. ``refusals`` False: a 503 is none, as an overloaded server should refuse."""
        num_refused = sum(outcome.record.status == 503 for outcome in self.outcomes)
        name = f"{self.rate:.3g} requests/s"
        return problems(name, self.json(), 0 if refusals else num_refused)


@dataclass
class Load:
    """The result of a run at one rate."""

    settings: LoadSettings
    tokenizer: str
    runs: list[Run] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        if not self.runs:
            return {}
        (run,) = self.runs
        fixed = {"seed": self.settings.seed, "tokenizer": self.tokenizer}
        return {**fixed, "run": run.json(), **details(run.outcomes, run.begin_s)}

    def problems(self) -> list[str]:
        return [problem for run in self.runs for problem in run.problems()]

    def headline(self) -> dict[str, Any]:
        if not self.runs:
            return {}
        found = self.runs[0].json()
        ttft, tpot = found.get("ttft_ms"), found.get("tpot_ms")
        return {
            "rate": found["rate"],
            "attained": found["attained"],
            "good_requests_per_s": found["good_requests_per_s"],
            "ttft_p99_ms": ttft and ttft["p99"],
            "tpot_p99_ms": tpot and tpot["p99"],
            "failed": found["failed"],
        }


def line(run: Run) -> str:
    """One run as a line of progress."""
    found = run.json()
    ttft, tpot = found.get("ttft_ms"), found.get("tpot_ms")
    parts = [
        f"{run.rate:.3g} requests/s: {run.attained:.1%} met the targets",
        f"TTFT p99 {ttft['p99']:,.1f} ms" if ttft else "",
        f"TPOT p99 {tpot['p99']:,.2f} ms" if tpot else "",
        f"{found['failed']} failed" if found["failed"] else "",
        f"{found['left_out']} left out" if found["left_out"] else "",
        f"the client was late {found['client_was_late']} times" * bool(found["client_was_late"]),
    ]
    return ", ".join(part for part in parts if part)
