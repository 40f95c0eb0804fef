"""Tables of times measured on one GPU, from result files: steps by sequences, prefill by tokens.

For other models and machines, a result of ``baton bench throughput`` with one prefill and one
decode worker gives such a table too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.predict.node import Node
from bench.predict.steps import EXPERT_S, Local, Spread
from decode.spread_table import Curve

RESULTS = Path(__file__).resolve().parents[1] / "results"
STEPS = (RESULTS / "h200-step.json", RESULTS / "h200-drafts-off-128.json")
DRAFTS = (RESULTS / "h200-drafts.json", RESULTS / "h200-drafts-128.json")
ATTENTION_S = 3.2e-10
"""Seconds of a new token for each earlier token of its prompt: what a prompt of 262,016 tokens
takes longer than prompts of 1,024 (h200-long.json). 512 TFLOP/s of attention, by its FLOPs."""
CONTEXT_S = 5.7e-9
"""Seconds of a decode step for each token of context: 20,480 bytes of KV at 3.6 TB/s."""


@dataclass(frozen=True)
class Table:
    """Measured times; ``files``: the results that they are from."""

    files: tuple[str, ...]
    prefill_s: Curve
    local: Local

    @classmethod
    def read(cls, steps: Sequence[Path] = STEPS) -> "Table":
        """Read a table: from results of ``bench.step``, and of the retired ``bench.speculation``
        with drafts off (prefill from the first of them), or from one throughput result. Raises
        ValueError or OSError."""
        if _load(steps[0]).get("kind") == "throughput":
            return cls.of_levels(steps[0])
        step_s: dict[int, float] = {}
        prefill: dict[int, float] = {}
        for path in steps:
            found = _load(path)
            rows = found.get("batches") or [r for r in found["steps"] if r["drafts"] == "off"]
            step_s |= {row["batch"]: row["step_ms"] / 1e3 for row in rows}
            if not prefill and "batches" in found:
                prefill = _prefill(found)
        if not prefill or not step_s:
            raise ValueError(f"{steps[0].name}: no prefill and steps of bench.step")
        names = tuple(path.name for path in steps)
        expert_s = EXPERT_S / 2 if _is_fp8(steps[0]) else EXPERT_S
        return cls(names, sorted(prefill.items()), Local(sorted(step_s.items()), expert_s=expert_s))

    @classmethod
    def of_levels(cls, path: Path) -> "Table":
        """A table from a throughput result: TPOT by requests at once, and TTFT of one request,
        which is scaled to prompts of any length. Both were measured through HTTP, so they include
        the time of the path."""
        found = _load(path)
        levels = {level["concurrency"]: level for level in found["results"]["levels"]}
        if 1 not in levels:
            raise ValueError(f"{path.name}: no level with one request at once")
        length, prompt_s = found["settings"]["input_len"], levels[1]["ttft_ms"]["p50"] / 1e3
        step_s = [(n, level["tpot_ms"]["p50"] / 1e3) for n, level in sorted(levels.items())]
        prefill_s = [(length, prompt_s), (2 * length, 2 * prompt_s)]
        return cls((path.name,), prefill_s, Local(step_s, full_size=False))

    def with_drafts(
        self, drafts: int, acceptance: float, files: Sequence[Path] = DRAFTS
    ) -> "Table":
        """This table with steps of ``drafts`` drafts per sequence. ``acceptance``: probability
        that a draft behind accepted ones is accepted. 0 drafts: the draft layer is loaded but
        drafts nothing."""
        if not self.local.full_size:
            raise ValueError(
                "--drafts: only steps of the full-size model were measured with drafts"
            )
        rows = [row for path in files for row in _load(path)["steps"]]
        step_s = {r["batch"]: r["step_ms"] / 1e3 for r in rows if r["drafts"] == str(drafts)}
        if not step_s:
            raise ValueError(f"--drafts: no step with {drafts} was measured in {files[0].name}")
        tokens = sum(acceptance**accepted for accepted in range(drafts + 1))
        names = (self.files[0], *(path.name for path in files))
        return Table(names, self.prefill_s, Local(sorted(step_s.items()), 1 + drafts, tokens))

    def node(self, *, spread: bool = True) -> Node:
        """A node of such GPUs; ``spread``: its workers take spread steps, which are known for the
        full-size model only."""
        if not self.local.full_size:
            return Node(self.prefill_s, self.local)
        steps = Spread(self.local) if spread else self.local
        return Node(self.prefill_s, steps, attention_s=ATTENTION_S, context_s=CONTEXT_S)


def _prefill(found: dict[str, Any]) -> dict[int, float]:
    """Seconds of prefill by tokens: of batches, and of single prompts shorter than theirs."""
    length = found["input_len"]
    alone = (found.get("single_prompts_ms") or {}).items()
    seconds = {int(tokens): ms / 1e3 for tokens, ms in alone if int(tokens) < length}
    for row in found["batches"]:
        tokens = row["batch"] * length
        seconds[tokens] = tokens / row["prefill_tokens_per_s"]
    return seconds


def _is_fp8(path: Path) -> bool:
    """True for a result of bench.step with FP8 weights, which only its command tells."""
    return "--quantize fp8" in _load(path).get("environment", {}).get("command", "")


def _load(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.keys().isdisjoint(("batches", "steps", "results")):
        raise ValueError(f"{path.name}: no result of bench.step, bench.speculation or throughput")
    return found
