"""One member of ``python -m bench.spread_step``: a model on one GPU, told what to run on stdin.

A command is a line of JSON with ``do`` and its arguments; the answer is a line of JSON behind "@",
with ``error`` where it failed. Everything else that is printed is for the log.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from bench.spread_lender import BenchLender
from bench.spread_parts import Parts
from engine import weights
from engine.batch import ForwardBatch, Row, SpreadPlan
from engine.config import EngineConfig
from engine.graphs import DecodeGraphs
from engine.kernels.interface import Kernels
from engine.kernels.triton_linear import aligned_rows
from engine.kernels.triton_set import TritonKernels
from engine.model.registry import build
from engine.model_folder import read_model
from engine.spread.member_steps import Draws, Settle
from engine.spread.memory import ExchangeLayout, first_flag
from engine.spread.outcome import SpreadOutcome, Waited
from engine.spread.shapes import SpreadShape, group_size, plain_shapes
from engine.spread.steps import SpreadSteps
from transport.copy.cuda import CudaMemory, close_handle, open_handle
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import PoolSize

CONTEXT, PAGE_SIZE = 1024, 64
NUM_IDS = 248_320
WARM_STEPS = 6


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


class Member:
    """The model with random weights, the same on all members, and random caches of its own."""

    def __init__(
        self, device: int, model_dir: Path, max_rows: int, buckets: Sequence[int], limit_s: float
    ) -> None:
        torch.cuda.set_device(device)
        self.device = torch.device("cuda", device)
        self.max_rows, self.buckets = max_rows, tuple(buckets)
        config, _ = read_model(EngineConfig(model_dir, 1, 1, load_format="dummy", device="cuda"))
        self.num_layers = len(config.layer_types)
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
            self.model, cache, layout, self.kernels, next_token, self.logits, CONTEXT + 512,
            spreads=True,
        )  # fmt: skip
        self.graphs.buckets = self.buckets
        exchanged = ExchangeLayout(max_rows, config.num_experts_per_tok, config.hidden_size)
        self.own = CudaMemory()
        self.steps = SpreadSteps(
            Unsampled(self.graphs), self.kernels, exchanged, self.num_layers, self.own,
            plain_shapes(self.buckets),
            limit_s=limit_s,
            open_peer=lambda handle: open_handle(handle, peer="a member"), close_peer=close_handle,
        )  # fmt: skip
        self.lender = BenchLender(self.model, exchanged, self.buckets, limit_s)
        self.exchange = self.steps.exchange
        self.handles = {"handle": self.own.handle, "lending": self.lender.handle}
        self.generation = 0
        self._unread: SpreadOutcome | None = None
        self._waited: list[Waited] = []

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
        self._read_last()
        torch.cuda.synchronize()
        self.lender.leave()
        self.steps.join(generation, place, handles)
        self.generation, self.num_members = generation, len(handles)
        torch.cuda.synchronize()
        return {}

    def join_lender(self, generation: int, place: int, handles: Sequence[str]) -> dict[str, Any]:
        """Be in a group whose last member lends."""
        self._read_last()
        torch.cuda.synchronize()
        if place + 1 < len(handles):
            self.steps.join(generation, place, handles, 1)
        else:
            self.lender.join(generation, handles)
        self.generation, self.num_members = generation, len(handles)
        torch.cuda.synchronize()
        return {}

    def lent(self, lends: bool, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """Bits and time of steps to which the last member lends; ``came``: to how many."""
        if not lends:
            found = self.bits(live, bucket, round_, steps)
            return found | self.time("spread", live, bucket, round_ + steps, steps)
        rounds = range(round_, round_ + WARM_STEPS + 2 * steps)
        return {"came": self.lender.lend(bucket, rounds)}

    def bits(self, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """Whether spread steps, and a local one behind them, give the logits and states of local
        ones."""
        local = self._outcome(live, steps, lambda _, rows: self.graphs.launch(rows))
        spread = self._outcome(
            live, steps, lambda i, rows: self._launch_spread(bucket, round_ + i, rows)
        )
        different = [
            (a.view(torch.int32) != b.view(torch.int32)).sum().item()
            for a, b in zip(local, spread, strict=True)
        ]
        worst = [
            (a - b).abs().max().item() if a.numel() else 0.0
            for a, b in zip(local, spread, strict=True)
        ]
        return {
            "equal": not any(different),
            "different": different,
            "worst": worst,
            "finite": all(bool(t.isfinite().all()) for t in local),
            "header": self.exchange.header.tolist(),
        }

    def time(self, mode: str, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """ms of a step, one behind the other, and us that the device waited for each member in
        it."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for i in range(WARM_STEPS + steps):
            if i == WARM_STEPS:
                began.record()
                self._waited.clear()
            self._launch(mode, bucket, round_ + i, self._rows(live, i))
        ended.record()
        ended.synchronize()
        ms = began.elapsed_time(ended) / steps
        found = {"ms": ms, "waited_us": mean_us(self._waited, self.num_members)}
        return found | {"header": self.exchange.header.tolist()}

    def profile(self, mode: str, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """us a step by kernel."""
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for i in range(steps):
                self._launch(mode, bucket, round_ + i, self._rows(live, i))
            torch.cuda.synchronize()
        times: dict[str, list[float]] = {}
        for event in profiled.events():
            if event.device_type == DeviceType.CUDA:
                times.setdefault(event.name[:48], []).append(event.time_range.elapsed_us())
        found = {
            name: [round(sum(each) / steps, 1), round(len(each) / steps, 1)]
            for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:24]
        }
        return {"us_and_calls": found}

    def stall(self, launches: bool, live: int, bucket: int, round_: int) -> dict[str, Any]:
        """Two steps that not all members launch: how long they take, whom they waited for, and
        whether local steps behind them give the bits that they give without."""
        self._read_last()
        if not launches:
            return {}
        truth = self._outcome(live, 2, lambda _, rows: self.graphs.launch(rows))
        self._begin()
        torch.cuda.synchronize()
        began = time.perf_counter()
        outcomes = [
            self._launch_step(bucket, round_ + i, self._rows(live, i), first=not i)
            for i in range(2)
        ]
        read = [self.steps.read(outcome)[:2] for outcome in outcomes]
        took_ms = 1e3 * (time.perf_counter() - began)
        found = self._run(live, 2, lambda _, rows: self.graphs.launch(rows))
        equal = all(
            torch.equal(ours, expected) for ours, expected in zip(found, truth, strict=True)
        )
        return {"ms": took_ms, "read": read, "taken_back": equal}

    def header(self) -> dict[str, Any]:
        """The abort word, and by member whether its rows came too late."""
        return {"header": self.exchange.header.tolist()}

    def parts(self, bucket: int, live: int, round_: int, repeats: int) -> dict[str, Any]:
        """us of one layer's parts, each alone."""
        torch.cuda.synchronize()
        parts = Parts(self.model, self.exchange, self.num_members, bucket, live)
        found = parts.measure(
            lambda i: self.exchange.begin_step(
                first_flag(self.generation, round_ + i, self.num_layers)
            ),
            repeats,
        )
        self.exchange.reset()
        torch.cuda.synchronize()
        return {"us": found, "header": self.exchange.header.tolist()}

    def _outcome(
        self, live: int, steps: int, launch: Callable[[int, list[Row]], Any]
    ) -> list[torch.Tensor]:
        self._begin()
        return self._run(live, steps, launch)

    def _begin(self) -> None:
        for tensor, kept in zip((self.cache.conv, self.cache.recurrent), self.kept, strict=True):
            tensor.copy_(kept)
        for slot in range(self.max_rows):
            self.graphs.forget(slot)

    def _run(
        self, live: int, steps: int, launch: Callable[[int, list[Row]], Any]
    ) -> list[torch.Tensor]:
        """The logits of the steps and of a local one behind them, which adds to the states what a
        spread one has left, and every fourth sequence's states."""
        found = []
        for i in range(steps):
            launch(i, self._rows(live, i))
            found.append(self.logits[:live].clone())
        self._read_last()
        found.append(self.graphs.launch(self._rows(live, steps))[0].clone())
        found.append(self.cache.recurrent[:live:4].clone())
        torch.cuda.synchronize()
        return found

    def _launch(self, mode: str, bucket: int, round_: int, rows: list[Row]) -> None:
        if mode == "spread":
            self._launch_spread(bucket, round_, rows)
        else:
            self.graphs.launch(rows)

    def _launch_spread(self, bucket: int, round_: int, rows: list[Row]) -> None:
        """The host is a step ahead, as a worker is."""
        outcome = self._launch_step(bucket, round_, rows, first=self._unread is None)
        self._read_last()
        self._unread = outcome

    def _launch_step(
        self, bucket: int, round_: int, rows: list[Row], *, first: bool
    ) -> SpreadOutcome:
        plan = SpreadPlan(self.generation, round_, bucket, first)
        return self.steps.launch(ForwardBatch(tuple(rows)), plan)[1]

    def _read_last(self) -> None:
        if self._unread is not None:
            self._waited.append(self.steps.read(self._unread).waited)
            self._unread = None

    def _rows(self, live: int, step: int) -> list[Row]:
        pages = self.pages_each
        return [
            Row(i, tuple(range(i * pages, (i + 1) * pages)), CONTEXT + step, None)
            for i in range(live)
        ]


def mean_us(waited: Sequence[Waited], num_members: int) -> dict[str, list[float]]:
    """Of a step, by member."""
    kinds = {"rows": [each.rows_s for each in waited], "results": [w.results_s for w in waited]}
    return {
        kind: [
            round(1e6 * sum(step[i] for step in steps) / max(1, len(steps)), 1)
            for i in range(num_members)
        ]
        for kind, steps in kinds.items()
    }


def serve(load: Callable[..., Any]) -> None:
    """Serve commands until stdin ends; the first one loads the member."""
    member: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            if do == "load":
                command["model_dir"] = Path(command["model_dir"])
                member = load(**command)
                answer: dict[str, Any] = member.handles
            else:
                assert member is not None, "load comes first"
                assert not do.startswith("_")
                with torch.inference_mode():
                    answer = getattr(member, do)(**command)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print("@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(Member)
