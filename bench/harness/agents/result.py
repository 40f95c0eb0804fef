"""What a load of agents found, turn by turn: the time to first token and the share of the prompt
that the server had cached."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.harness.agents.settings import Shape
from bench.harness.figures.outcome import Outcome
from bench.harness.figures.summary import details, problems, summary
from bench.harness.load_settings import LoadSettings
from bench.measures import spread_ms


@dataclass
class AgentsLevel:
    """One number of agents at once. ``agents`` has each agent's turns: fewer where one failed or
    the run was stopped."""

    num_agents: int
    shape: Shape
    agents: list[list[Outcome]] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for turns in self.agents for outcome in turns]

    @property
    def num_planned(self) -> int:
        return self.num_agents * self.shape.turns

    def by_turn(self) -> list[dict[str, Any]]:
        """Figures of each turn that at least one agent sent, over all agents."""
        numbers = range(max(map(len, self.agents), default=0))
        return [
            _turn(number + 1, [turns[number] for turns in self.agents if number < len(turns)])
            for number in numbers
        ]

    def json(self) -> dict[str, Any]:
        """Figures of all turns, and ``by_turn``. ``later`` in a name: from turn 2 on. Only the
        system prompt and the agent's own earlier turns can be cached then. ``concurrency`` is the
        number of agents: the report draws levels of any kind over it."""
        outcomes, turns = self.outcomes, self.by_turn()
        later = [outcome for own in self.agents for outcome in own[1:]]
        rates = [turn["hit_rate"] for turn in turns[1:] if turn["hit_rate"] is not None]
        return {
            "concurrency": self.num_agents,
            "planned": self.num_planned,
            "not_sent": self.num_planned - len(outcomes),
            **(summary(outcomes) if outcomes else {"requests": 0, "failed": 0}),
            "hit_rate": hit_rate(outcomes),
            "hit_rate_later": hit_rate(later),
            "lowest_hit_rate_later": min(rates, default=None),
            "ttft_growth": _growth(turns),
            "by_turn": turns,
        }

    def problems(self) -> list[str]:
        return problems(f"{self.num_agents} agents", self.json())


@dataclass
class AgentsLoad:
    """The result, which grows level by level."""

    settings: LoadSettings
    tokenizer: str
    levels: list[AgentsLevel] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        outcomes = [outcome for level in self.levels for outcome in level.outcomes]
        if not outcomes:
            return {}
        begin_s = min(outcome.record.due_at_s for outcome in outcomes)
        return {
            "seed": self.settings.seed,
            "tokenizer": self.tokenizer,
            "levels": [level.json() for level in self.levels],
            **details(outcomes, begin_s),
        }

    def problems(self) -> list[str]:
        return [problem for level in self.levels for problem in level.problems()]

    def headline(self) -> dict[str, Any]:
        return {"agents": {str(level.num_agents): _headline(level) for level in self.levels}}


def _headline(level: AgentsLevel) -> dict[str, Any]:
    found = level.json()
    last = (found["by_turn"] or [{}])[-1].get("ttft_ms") or {}
    names = ("failed", "not_sent", "total_tok_s", "output_tok_s")
    rates = ("hit_rate_later", "lowest_hit_rate_later", "ttft_growth")
    return {
        **{name: found.get(name) for name in (*names, *rates)},
        "tpot_p50_ms": (found.get("tpot_ms") or {}).get("p50"),
        "ttft_p50_ms": (found.get("ttft_ms") or {}).get("p50"),
        "last_turn": {f"ttft_{share}_ms": last.get(share) for share in ("p50", "p99")},
    }


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


def lines(level: AgentsLevel) -> list[str]:
    """The level, its first two turns and its last one, each as a line of progress."""
    found = level.json()
    turns, tpot_ms = found["by_turn"], (found.get("tpot_ms") or {}).get("p50")
    parts = [
        f"{level.num_agents} agents: {found.get('output_tok_s', 0.0):,.0f} output tok/s",
        f"TPOT p50 {tpot_ms:,.2f} ms, {1e3 / tpot_ms:,.1f} tok/s a user" if tpot_ms else "",
    ]
    shown = {turn["turn"]: turn for turn in (*turns[:2], *turns[-1:])}
    return [", ".join(filter(None, parts)), *map(_said, shown.values())]


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
