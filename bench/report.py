"""Figures beside their targets, for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Target:
    """``value`` must be at least, or at most, ``bound``."""

    name: str
    value: float
    bound: float
    side: Literal["at least", "at most"]
    unit: str
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.side == "at least" else self.value <= self.bound

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "target": f"{self.side} {self.bound:g} {self.unit}".strip(),
            "met": self.met,
        }


def targets(results: dict[str, Any]) -> list[Target]:
    """What the benchmark promises, out of its results."""
    one, sixteen = results["one"], results["sixteen"]
    outside, streams, memory = results["outside_model"], results["streams"], results["memory"]
    flat = 100 * memory["worst_growth_share"]
    return [
        Target("one request at a time", one["ratio"], 1.0, "at least", "×", _against(one)),
        Target(
            f"{sixteen['requests']} at once", sixteen["ratio"], 1.5, "at least", "×",
            _against(sixteen),
        ),
        Target(
            "outside the model, p50", outside["p50_ms"], 8.0, "at most", "ms",
            f"p95 {outside['p95_ms']:.1f} ms of {outside['total_p50_ms']:.1f} ms",
        ),
        Target(
            f"lost of {streams['streams']} streams", streams["lost"], 0, "at most", "",
            f"{streams['tokens_per_s']:.0f} tok/s, ITL p50 {streams['itl_p50_ms']:.1f} ms",
        ),
        Target(
            "streams unlike those alone", streams["different_from_alone"], 0, "at most", "",
            f"{streams['new_tokens_each']} tokens each, temperature 0",
        ),
        Target(
            f"memory over {memory['requests']} requests", flat, 5.0, "at most", "%",
            ", ".join(
                f"{name} {s['first_mib']:.0f} → {s['last_mib']:.0f} MiB"
                for name, s in memory["services"].items()
            ),
        ),
    ]  # fmt: skip


def show(found: Sequence[Target]) -> None:
    table = Table("", "measured", "target", "", "", box=None, pad_edge=False)
    for target in found:
        table.add_row(
            target.name,
            f"{target.value:.4g} {target.unit}",
            f"{target.side} {target.bound:g} {target.unit}",
            "pass" if target.met else "MISS",
            target.detail,
        )
    Console(width=150).print(table)


def _against(result: dict[str, Any]) -> str:
    return (
        f"{result['baton_tokens_per_s']:.0f} tok/s, transformers "
        f"{result['transformers_tokens_per_s']:.0f} ({result['transformers_threads']} threads)"
    )
