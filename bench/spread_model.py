"""A model with random weights on one GPU, whose decode steps are local ones or those of a group
(bench/spread_member.py)."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.spread_cases import CONTEXT
from engine import weights
from engine.batch import ForwardBatch, Row, SpreadPlan
from engine.config import EngineConfig
from engine.graphs import DecodeGraphs, Trunk
from engine.kernels.interface import Kernels
from engine.kernels.triton_linear import aligned_rows
from engine.kernels.triton_set import TritonKernels
from engine.model.model import Model
from engine.model.registry import build
from engine.model_folder import read_model
from engine.spread.group_memory import GroupMemory
from engine.spread.lending import LendingSteps
from engine.spread.member_steps import Draws, Settle
from engine.spread.memory import ExchangeLayout
from engine.spread.outcome import SpreadOutcome, Waited
from engine.spread.shapes import SpreadShape, group_size, plain_shapes
from engine.spread.steps import SpreadSteps
from transport.copy.cuda import CudaMemory, close_handle, open_handle
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import PoolSize
from transport.wire.spread import ExchangeExport

PAGE_SIZE = 64
NUM_IDS = 248_320


class Unsampled:
    """``MemberSteps`` of graphs whose logits are not sampled: next tokens stay as they are."""

    def __init__(self, graphs: DecodeGraphs) -> None:
        self._graphs = graphs

    def capture(self, size: int, shapes: Sequence[SpreadShape], kernels: Kernels) -> None:
        self._graphs.capture_spread(size, [shape.bucket for shape in shapes], kernels)

    def launch(self, size: int, shape: SpreadShape, batch: ForwardBatch) -> Settle:
        rows = batch.rows
        self._graphs.launch_spread(size, shape.bucket, rows)

        def settle(outcome: SpreadOutcome) -> Draws:
            if rows:
                self._graphs.settle_spread(len(rows), outcome.aborted)
            return ()

        return settle

    def read(self, *, aborted: bool) -> None:
        """Nothing is kept."""


class BenchLender:
    """The last member of a group, where it has no rows. ``handle`` is its memory's."""

    def __init__(
        self, model: Model, layout: ExchangeLayout, buckets: Sequence[int], limit_s: float
    ) -> None:
        memory = CudaMemory()
        group = _group(layout, memory)
        self._steps = LendingSteps(model, group, plain_shapes(buckets), limit_s=limit_s)
        self.handle = memory.handle
        self._generation = 0

    def capture(self, size: int) -> None:
        self._steps.capture(sizes=[size])

    def join(self, generation: int, handles: Sequence[str]) -> None:
        exports = [ExchangeExport("cuda-ipc", handle, 1) for handle in handles]
        self._steps.join(generation, len(handles) - 1, exports, 1)
        self._generation = generation

    def leave(self) -> None:
        self._steps.leave()

    def lend(self, bucket: int, rounds: Sequence[int]) -> int:
        """To how many of these rounds' steps it has come in time."""
        plans = [SpreadPlan(self._generation, number, bucket, first=True) for number in rounds]
        return sum(self._steps.lend(plan).took_part for plan in plans)


class SpreadModel:
    """The weights are the same on all members; each has random caches of its own. ``waited`` is
    what the steps that were read have waited for others."""

    def __init__(
        self, device: int, model_dir: Path, max_rows: int, buckets: Sequence[int], limit_s: float
    ) -> None:
        torch.cuda.set_device(device)
        self.device = torch.device("cuda", device)
        self.max_rows, self.buckets = max_rows, tuple(buckets)
        config, _ = read_model(EngineConfig(model_dir, 1, 1, load_format="dummy", device="cuda"))
        self.num_layers = len(config.layers)
        layout = config.cache_layout("bfloat16", PAGE_SIZE)
        self.model = build(config, torch.bfloat16, self.device)
        weights.draw(self.model.plan, 0)
        self.model.prepare()
        self.pages_each = layout.pages_for(CONTEXT + 512)
        pools = PoolSize(self.pages_each * max_rows, max_rows)
        memory = CudaMemory().allocate(Region.of(layout, pools).size_bytes)
        self.cache = cache = CacheTensors.over(memory, layout, pools)
        generator = torch.Generator(self.device).manual_seed(1 + device)
        for tensor, std in ((cache.kv, 1.0), (cache.conv, 1.0), (cache.recurrent, 0.1)):
            tensor.normal_(0, std, generator=generator)
        self.kept = cache.conv.clone(), cache.recurrent.clone()
        next_token = torch.randint(0, NUM_IDS, (max_rows,), generator=generator, device=self.device)
        self.logits = aligned_rows(max_rows, NUM_IDS, dtype=torch.float32, device=self.device)
        self.kernels = TritonKernels(config, self.device, max_rows)
        self.graphs = DecodeGraphs(
            Trunk(self.model, cache, layout, self.kernels, CONTEXT + 512), next_token, self.logits,
            spreads=True, buckets=self.buckets,
        )  # fmt: skip
        exchanged = ExchangeLayout(max_rows, config.moe.num_experts_per_tok, config.hidden_size)
        self.own = CudaMemory()
        group = _group(exchanged, self.own)
        self.steps = SpreadSteps(
            Unsampled(self.graphs), self.kernels, group, self.num_layers,
            plain_shapes(self.buckets), limit_s=limit_s,
        )  # fmt: skip
        self.lender = BenchLender(self.model, exchanged, self.buckets, limit_s)
        self.exchange = self.steps.exchange
        self.handles = {"handle": self.own.handle, "lending": self.lender.handle}
        self.generation = self.num_members = 0
        self._unread: SpreadOutcome | None = None
        self.waited: list[Waited] = []

    def capture(self, num_members: int) -> dict[str, Any]:
        """Graphs of the local steps and of the spread ones."""
        began = time.perf_counter()
        self.graphs.capture()
        local_s = time.perf_counter() - began
        with_lender = group_size(num_members - 1)
        self.steps.capture(sizes=sorted({group_size(num_members), with_lender}))
        self.lender.capture(with_lender)
        torch.cuda.synchronize()
        return {"local_s": local_s, "both_s": time.perf_counter() - began}

    def join(self, generation: int, place: int, handles: Sequence[str]) -> dict[str, Any]:
        self.read_last()
        torch.cuda.synchronize()
        self.lender.leave()
        self.steps.join(generation, place, handles)
        self.generation, self.num_members = generation, len(handles)
        torch.cuda.synchronize()
        return {}

    def join_lender(self, generation: int, place: int, handles: Sequence[str]) -> dict[str, Any]:
        """Be in a group whose last member lends."""
        self.read_last()
        torch.cuda.synchronize()
        if place + 1 < len(handles):
            self.steps.join(generation, place, handles, 1)
        else:
            self.lender.join(generation, handles)
        self.generation, self.num_members = generation, len(handles)
        torch.cuda.synchronize()
        return {}

    def outcome(
        self, live: int, steps: int, launch: Callable[[int, list[Row]], Any]
    ) -> list[torch.Tensor]:
        """What ``run`` gives from the beginning."""
        self.begin()
        return self.run(live, steps, launch)

    def begin(self) -> None:
        """States as they were loaded, of no step."""
        for tensor, kept in zip((self.cache.conv, self.cache.recurrent), self.kept, strict=True):
            tensor.copy_(kept)
        for slot in range(self.max_rows):
            self.graphs.forget(slot)

    def run(
        self, live: int, steps: int, launch: Callable[[int, list[Row]], Any]
    ) -> list[torch.Tensor]:
        """The logits of the steps and of a local one behind them, which adds to the states what a
        spread one has left, and every fourth sequence's states."""
        found = []
        for i in range(steps):
            launch(i, self.rows(live, i))
            found.append(self.logits[:live].clone())
        self.read_last()
        found.append(self.graphs.launch(self.rows(live, steps))[0].clone())
        found.append(self.cache.recurrent[:live:4].clone())
        torch.cuda.synchronize()
        return found

    def launch_local(self, _: int, rows: list[Row]) -> None:
        self.graphs.launch(rows)

    def launch_spread(self, bucket: int, first_round: int, i: int, rows: list[Row]) -> None:
        """Step ``i``. The host is a step ahead, as a worker is."""
        outcome = self.launch_step(bucket, first_round + i, rows, first=self._unread is None)
        self.read_last()
        self._unread = outcome

    def launch_step(
        self, bucket: int, round_: int, rows: list[Row], *, first: bool
    ) -> SpreadOutcome:
        plan = SpreadPlan(self.generation, round_, bucket, first)
        return self.steps.launch(ForwardBatch(tuple(rows)), plan)[1]

    def read_last(self) -> None:
        if self._unread is not None:
            self.waited.append(self.steps.read(self._unread).waited)
            self._unread = None

    def rows(self, live: int, step: int) -> list[Row]:
        pages = self.pages_each
        return [
            Row(i, tuple(range(i * pages, (i + 1) * pages)), CONTEXT + step, None)
            for i in range(live)
        ]


def _group(layout: ExchangeLayout, memory: CudaMemory) -> GroupMemory:
    opens = partial(open_handle, peer="a member")
    return GroupMemory(layout, memory, opens, close_handle)
