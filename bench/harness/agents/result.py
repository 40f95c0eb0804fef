"""What a load of agents found, turn by turn: the time to first token and the share of the prompt
that the server had cached."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.harness.figures.outcome import Outcome, failures
from bench.harness.figures.summary import summary
from bench.harness.figures.timeline import timeline
from bench.harness.load_settings import LoadSettings
from bench.measures import spread_ms


@dataclass
class AgentsLoad:
    """``agents`` has each agent's turns: fewer where one failed or the run was stopped."""

    settings: LoadSettings
    tokenizer: str
    agents: list[list[Outcome]] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for turns in self.agents for outcome in turns]

    @property
    def num_planned(self) -> int:
        return (self.settings.agents or 0) * self.settings.turns

    def by_turn(self) -> list[dict[str, Any]]:
        """Figures of each turn that at least one agent sent, over all agents."""
        numbers = range(max(map(len, self.agents), default=0))
        return [
            _turn(number + 1, [turns[number] for turns in self.agents if number < len(turns)])
            for number in numbers
        ]

    def run(self) -> dict[str, Any]:
        """Figures of all turns. ``later`` in a name: from turn 2 on. Only the shared system prompt
        and the agent's own earlier turns can be cached then."""
        outcomes, turns = self.outcomes, self.by_turn()
        later = [outcome for own in self.agents for outcome in own[1:]]
        rates = [turn["hit_rate"] for turn in turns[1:] if turn["hit_rate"] is not None]
        return {
            "agents": self.settings.agents,
            "turns": self.settings.turns,
            "planned": self.num_planned,
            "not_sent": self.num_planned - len(outcomes),
            **summary(outcomes),
            "hit_rate": hit_rate(outcomes),
            "hit_rate_later": hit_rate(later),
            "lowest_hit_rate_later": min(rates, default=None),
            "ttft_growth": _growth(turns),
        }

    def json(self) -> dict[str, Any]:
        if not (outcomes := self.outcomes):
            return {}
        begin_s = min(outcome.record.due_at_s for outcome in outcomes)
        return {
            "seed": self.settings.seed,
            "tokenizer": self.tokenizer,
            "run": self.run(),
            "by_turn": self.by_turn(),
            "timeline": timeline(outcomes, begin_s),
            "failures": failures(outcomes),
            "requests": [outcome.json(begin_s) for outcome in outcomes],
        }

    def problems(self) -> list[str]:
        outcomes = self.outcomes
        bad = [outcome for outcome in outcomes if not outcome.ok]
        kinds = ", ".join(sorted({str(outcome.record.failure) for outcome in bad}))
        found = [f"{len(bad)} of {len(outcomes)} requests failed ({kinds})"] if bad else []
        if num_missing := self.num_planned - len(outcomes):
            found.append(f"{num_missing} of {self.num_planned} turns never sent")
        return found

    def headline(self) -> dict[str, Any]:
        if not self.outcomes:
            return {}
        run, last = self.run(), self.by_turn()[-1]
        names = ("agents", "turns", "failed", "not_sent", "total_tok_s")
        rates = ("hit_rate_later", "lowest_hit_rate_later", "ttft_growth")
        ttft = {f"ttft_{share}_ms": (last["ttft_ms"] or {}).get(share) for share in ("p50", "p99")}
        return {name: run[name] for name in (*names, *rates)} | {"last_turn": ttft}


def hit_rate(outcomes: Sequence[Outcome]) -> float | None:
    """Cached tokens / prompt tokens, both by the server's ``usage``, over requests without a
    failure. None if no answer reports cached tokens."""
    cached = prompt = 0
    for outcome in outcomes:
        usage = outcome.record.usage
        if outcome.ok and usage is not None and usage.cached_tokens is not None:
            cached += usage.cached_tokens
            prompt += usage.prompt_tokens
    return cached / prompt if prompt else None


def lines(found: AgentsLoad) -> list[str]:
    """The first two turns and the last one, each as a line of progress."""
    turns = found.by_turn()
    shown = {turn["turn"]: turn for turn in (*turns[:2], *turns[-1:])}
    return [_said(turn) for turn in shown.values()]


def _turn(number: int, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Figures of one turn: means over requests without a failure; tokens by ``usage``."""
    good = [outcome for outcome in outcomes if outcome.ok]
    usages = [outcome.record.usage for outcome in good if outcome.record.usage is not None]
    cached = [usage.cached_tokens for usage in usages if usage.cached_tokens is not None]
    return {
        "turn": number,
        "requests": len(outcomes),
        "failed": len(outcomes) - len(good),
        "prompt_tokens": fmean(u.prompt_tokens for u in usages) if usages else None,
        "cached_tokens": fmean(cached) if cached else None,
        "hit_rate": hit_rate(good),
        "without_cached_tokens": len(good) - len(cached),
        "ttft_ms": spread_ms([o.record.ttft_s for o in good if o.record.ttft_s is not None]),
        "tpot_ms": spread_ms([o.tpot_s for o in good if o.tpot_s is not None]),
        "e2e_ms": spread_ms([o.record.e2e_s for o in good]),
    }


def _growth(turns: Sequence[dict[str, Any]]) -> float | None:
    """TTFT p50 of the last turn / TTFT p50 of turn 2; None with fewer than three turns."""
    ends = [turn["ttft_ms"] for turn in (*turns[1:2], *turns[-1:])]
    if len(turns) < 3 or None in ends:
        return None
    return float(ends[1]["p50"] / ends[0]["p50"])


def _said(turn: dict[str, Any]) -> str:
    ttft, tokens, rate = turn["ttft_ms"], turn["prompt_tokens"], turn["hit_rate"]
    parts = [
        f"turn {turn['turn']}: {tokens:,.0f} prompt tokens" if tokens else f"turn {turn['turn']}",
        "cached tokens not reported" if rate is None else f"{rate:.1%} of them cached",
        f"TTFT p50 {ttft['p50']:,.1f} ms, p99 {ttft['p99']:,.1f} ms" if ttft else "",
        f"{turn['failed']} failed" if turn["failed"] else "",
    ]
    return ", ".join(part for part in parts if part)
