"""A worker's engine on one GPU, whose decode steps are local ones or those of a spread group
(bench/spread/member.py)."""

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.batch import ForwardBatch, SpreadPlan
from engine.config import EngineConfig
from engine.graphs.decode_graphs import DecodeGraphs
from engine.graphs.draft_graphs import DraftGraphs
from engine.runner import Engine
from engine.spread.engine_steps import EngineSpread
from engine.spread.lending import LendingSteps
from engine.spread.shapes import group_size, shape_for
from engine.step import Step
from transport.wire.spread import ExchangeExport

ACCEPTED = 0.7
PROMPT_LEN, GROWTH = 70, 192
"""Tokens of a prompt, and room for those that follow: of 16 timed steps with drafts about 90."""


def load(
    device: int, model_dir: Path, buckets: Sequence[int], max_drafts: int, num_members: int,
    context: int,
) -> Engine:  # fmt: skip
    """Load random weights, the same on all members. Each of ``buckets[-1]`` sequences has room for
    ``context`` tokens, or for a prompt. Graphs are captured for groups of ``num_members``, with a
    lender and without. An engine with a context is for timed steps, and captures no prompts."""
    torch.cuda.set_device(device)
    sizes = {group_size(num_members), group_size(num_members - 1)}
    config = EngineConfig(
        model_dir, pages_each(context) * buckets[-1], buckets[-1], load_format="dummy",
        device="cuda", max_drafts=max_drafts, draft_acceptance=ACCEPTED if max_drafts else None,
        spread=True, any_role=True, prefills=not context, decode_buckets=tuple(buckets),
        group_sizes=tuple(sorted(sizes)),
    )  # fmt: skip
    engine = Engine.load(config, lambda size: torch.zeros(size, dtype=torch.uint8, device="cuda"))
    if context:
        engine.cache.kv.normal_()
    return engine


def pages_each(context: int) -> int:
    """Pages of a sequence."""
    return -(-(context + GROWTH) // EngineConfig.page_size)


class MemberEngine:
    """``engine``, in a group once ``join`` was called. Drafts are accepted by lot, the same in
    every run, since those of a random model never are."""

    def __init__(self, engine: Engine, pages_each: int, limit_s: float) -> None:
        assert isinstance(engine.spread, EngineSpread)
        assert isinstance(engine.lending, LendingSteps)
        graphs = engine._drafts if engine.max_drafts else engine._graphs
        assert isinstance(graphs, DraftGraphs | DecodeGraphs)
        self.engine, self.spread, self._lending = engine, engine.spread, engine.lending
        self.spread.steps.limit_s = self._lending.limit_s = limit_s
        self._pages_each = pages_each
        self.logits = graphs.logits
        """Logits of all tokens of the latest step, float32 [tokens, ids]."""
        self.num_members = self.place = self._generation = self._round = 0

    @property
    def handle(self) -> str:
        return self.spread.export.handle

    def join(self, generation: int, place: int, handles: Sequence[str], num_lenders: int) -> None:
        """Join a group whose last ``num_lenders`` members lend."""
        own = self.spread.export
        exports = [ExchangeExport(own.kind, handle, own.size_bytes) for handle in handles]
        lends = place >= len(handles) - num_lenders
        (self._lending if lends else self.spread).join(generation, place, exports, num_lenders)
        self._generation, self._round = generation, 0
        self.place, self.num_members = place, len(handles)

    def launch_spread(
        self, batch: ForwardBatch, most: int, num_drafts: int, *, first: bool
    ) -> Step:
        """Launch a step of all members. The largest has ``most`` sequences, with ``num_drafts``
        drafts each."""
        return self.spread.launch(batch, self._plan(most, num_drafts, first=first))

    def lend(self, most: int, num_steps: int) -> int:
        """Lend to the next steps of the others, without drafts, each launched behind the one under
        way; returns how many of them this member came to in time."""
        num_came, step = 0, self._lending.lend(self._plan(most, 0, first=True))
        for _ in range(num_steps - 1):
            behind = self._lending.lend(self._plan(most, 0, first=False))
            num_came += step.result().took_part
            step = behind
        return num_came + step.result().took_part

    def pages(self, slot: int) -> tuple[int, ...]:
        return tuple(range(slot * self._pages_each, (slot + 1) * self._pages_each))

    def _plan(self, most: int, num_drafts: int, *, first: bool) -> SpreadPlan:
        self._round += 1
        shape = shape_for(self.spread.shapes, most, num_drafts)
        assert shape.num_drafts == num_drafts, "a case that the exchange has no room for"
        return SpreadPlan(self._generation, self._round, shape.bucket, first, shape.num_drafts)
