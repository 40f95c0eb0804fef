"""What was measured on one GPU, from result files: steps by sequences, prefill by tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.predict.pools import Node
from bench.predict.steps import Curve, Local, Spread

RESULTS = Path(__file__).resolve().parents[1] / "results"
STEPS = (RESULTS / "h200-step.json", RESULTS / "h200-drafts-off-128.json")
DRAFTS = (RESULTS / "h200-drafts.json", RESULTS / "h200-drafts-128.json")


@dataclass(frozen=True)
class Table:
    """``files`` are the results that it is from."""

    files: tuple[str, ...]
    prefill_s: Curve
    local: Local

    @classmethod
    def read(cls, steps: Sequence[Path] = STEPS) -> "Table":
        """Steps without drafts, of results of ``bench.step`` and of ``bench.speculation`` with
        drafts off; prefill of the first. Raises ValueError or OSError."""
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
        return cls(names, sorted(prefill.items()), Local(sorted(step_s.items())))

    def with_drafts(
        self, drafts: int, acceptance: float, files: Sequence[Path] = DRAFTS
    ) -> "Table":
        """Steps with so many drafts for each sequence, each accepted, behind accepted ones, with a
        given probability; 0: the draft layer is loaded, and nothing drafted."""
        rows = [row for path in files for row in _load(path)["steps"]]
        step_s = {r["batch"]: r["step_ms"] / 1e3 for r in rows if r["drafts"] == str(drafts)}
        if not step_s:
            raise ValueError(f"--drafts: no step with {drafts} was measured in {files[0].name}")
        tokens = sum(acceptance**accepted for accepted in range(drafts + 1))
        names = (self.files[0], *(path.name for path in files))
        return Table(names, self.prefill_s, Local(sorted(step_s.items()), 1 + drafts, tokens))

    def node(self, *, spread: bool = False) -> Node:
        return Node(self.prefill_s, Spread(self.local) if spread else self.local)


def _prefill(found: dict[str, Any]) -> dict[int, float]:
    """Seconds over the tokens of a batch; prompts shorter than those of the batches count alone."""
    length = found["input_len"]
    alone = (found.get("single_prompts_ms") or {}).items()
    seconds = {int(tokens): ms / 1e3 for tokens, ms in alone if int(tokens) < length}
    for row in found["batches"]:
        tokens = row["batch"] * length
        seconds[tokens] = tokens / row["prefill_tokens_per_s"]
    return seconds


def _load(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or not ("batches" in found or "steps" in found):
        raise ValueError(f"{path.name}: no result of bench.step or bench.speculation")
    return found
