"""A worker's engine on one GPU, with drafts, whose steps are local ones or those of a group
(bench/spread_draft_member.py)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.batch import ForwardBatch, SpreadPlan
from engine.config import DECODE_BUCKETS, EngineConfig
from engine.draft_graphs import DraftGraphs
from engine.runner import Engine
from engine.spread.engine_steps import EngineSpread
from engine.spread.shapes import group_size, shape_for
from engine.step import Step
from transport.wire.spread import ExchangeExport

MAX_DRAFTS, ACCEPTED = 3, 0.7
PROMPT_LEN, GROWTH = 70, 192
"""Tokens of a prompt, and room for those that follow: of 16 timed steps with drafts about 90."""


def load(
    device: int, model_dir: Path, max_rows: int, buckets: Sequence[int], num_members: int,
    context: int,
) -> Engine:  # fmt: skip
    """With random weights, the same on all members, and room for ``context`` tokens of each
    sequence, or for a prompt. Graphs of no other group are captured; where there is a context,
    whose steps are timed, of no other batches and no prompts either."""
    torch.cuda.set_device(device)
    config = EngineConfig(
        model_dir, pages_each(context) * max_rows, max_rows, load_format="dummy", device="cuda",
        max_drafts=MAX_DRAFTS, draft_acceptance=ACCEPTED, spread=True, prefills=not context,
        decode_buckets=tuple(buckets) if context else DECODE_BUCKETS,
        group_sizes=(group_size(num_members),),
    )  # fmt: skip
    engine = Engine.load(config, lambda size: torch.zeros(size, dtype=torch.uint8, device="cuda"))
    if context:
        engine.cache.kv.normal_()
    return engine


def pages_each(context: int) -> int:
    """Pages of a sequence."""
    return -(-(context + GROWTH) // EngineConfig.page_size)


class DraftEngine:
    """``engine``, in a group of ``num_members`` once ``join`` was called. Drafts are accepted by
    lot, the same in every run, since those of a random model never are."""

    def __init__(self, engine: Engine, num_members: int, pages_each: int, limit_s: float) -> None:
        assert isinstance(engine._drafts, DraftGraphs)
        assert isinstance(engine.spread, EngineSpread)
        self.engine, self.spread, self._drafts = engine, engine.spread, engine._drafts
        self.spread.steps.limit_s = limit_s
        self.num_members, self._pages_each = num_members, pages_each
        self.place = self._generation = self._round = 0

    @property
    def handle(self) -> str:
        return self.spread.export.handle

    @property
    def logits(self) -> torch.Tensor:
        """Logits of all tokens of the latest step, float32 [tokens, ids]."""
        return self._drafts.logits

    def join(self, generation: int, place: int, handles: Sequence[str]) -> dict[str, Any]:
        own = self.spread.export
        exports = [ExchangeExport(own.kind, handle, own.size_bytes) for handle in handles]
        self.spread.join(generation, place, exports, 0)
        self._generation, self.place, self._round = generation, place, 0
        return {}

    def launch_spread(
        self, batch: ForwardBatch, most: int, num_drafts: int, *, first: bool
    ) -> Step:
        """Launch a step of all members. The largest has ``most`` sequences, with ``num_drafts``
        drafts each."""
        self._round += 1
        shape = shape_for(self.spread.shapes, most, num_drafts)
        assert shape.num_drafts == num_drafts, "a case that the exchange has no room for"
        plan = SpreadPlan(self._generation, self._round, shape.bucket, first, shape.num_drafts)
        return self.spread.launch(batch, plan)

    def pages(self, slot: int) -> tuple[int, ...]:
        return tuple(range(slot * self._pages_each, (slot + 1) * self._pages_each))
