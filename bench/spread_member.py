"""One member of ``python -m bench.spread_step``: a model on one GPU, told what to run
(bench/spread_commands.py)."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.spread_commands import Commands, serve
from bench.spread_model import SpreadModel
from bench.timed_steps import WARM_STEPS, kernel_us, mean_us, step_ms


class SpreadMember:
    """What is measured of a model's steps. ``live`` rows are the member's own, ``bucket`` those of
    the largest member; rounds count from ``round_`` on."""

    def __init__(
        self, device: int, model_dir: Path, max_rows: int, buckets: Sequence[int], limit_s: float
    ) -> None:
        self._model = SpreadModel(device, model_dir, max_rows, buckets, limit_s)

    @property
    def handles(self) -> dict[str, Any]:
        return self._model.handles

    @property
    def commands(self) -> Commands:
        model = self._model
        return {
            "capture": model.capture,
            "join": model.join,
            "join_lender": model.join_lender,
            "header": self.header,
            "bits": self.bits,
            "stall": self.stall,
            "lent": self.lent,
            "time": self.time,
            "profile": self.profile,
        }

    def lent(self, lends: bool, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """Bits and time of steps to which the last member lends; ``came``: to how many."""
        if not lends:
            found = self.bits(live, bucket, round_, steps)
            return found | self.time("spread", live, bucket, round_ + steps, steps)
        rounds = range(round_, round_ + WARM_STEPS + 2 * steps)
        return {"came": self._model.lender.lend(bucket, rounds)}

    def bits(self, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """Whether spread steps, and a local one behind them, give the logits and states of local
        ones."""
        model = self._model
        local = model.outcome(live, steps, model.launch_local)
        spread = model.outcome(live, steps, partial(model.launch_spread, bucket, round_))
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
            "header": self._header(),
        }

    def time(self, mode: str, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """ms of a step, one behind the other, and us that the device waited for each member in
        it."""
        model, launch = self._model, self._launch(mode, live, bucket, round_)

        def timed(i: int) -> None:
            if i == WARM_STEPS:
                model.waited.clear()
            launch(i)

        ms = step_ms(timed, steps)
        found = {"ms": ms, "waited_us": mean_us(model.waited, model.num_members)}
        return found | {"header": self._header()}

    def profile(self, mode: str, live: int, bucket: int, round_: int, steps: int) -> dict[str, Any]:
        """us a step by kernel."""
        launch = self._launch(mode, live, bucket, round_)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for i in range(steps):
                launch(i)
            torch.cuda.synchronize()
        found = {
            name: [round(sum(each) / steps, 1), round(len(each) / steps, 1)]
            for name, each in kernel_us(profiled, 48)[:24]
        }
        return {"us_and_calls": found}

    def stall(self, launches: bool, live: int, bucket: int, round_: int) -> dict[str, Any]:
        """Two steps that not all members launch: how long they take, whom they waited for, and
        whether local steps behind them give the bits that they give without."""
        model = self._model
        model.read_last()
        if not launches:
            return {}
        truth = model.outcome(live, 2, model.launch_local)
        model.begin()
        torch.cuda.synchronize()
        began = time.perf_counter()
        outcomes = [
            model.launch_step(bucket, round_ + i, model.rows(live, i), first=not i)
            for i in range(2)
        ]
        read = [model.steps.read(outcome)[:2] for outcome in outcomes]
        took_ms = 1e3 * (time.perf_counter() - began)
        found = model.run(live, 2, model.launch_local)
        equal = all(
            torch.equal(ours, expected) for ours, expected in zip(found, truth, strict=True)
        )
        return {"ms": took_ms, "read": read, "taken_back": equal}

    def header(self) -> dict[str, Any]:
        """The abort word, and by member whether its rows came too late."""
        return {"header": self._header()}

    def _launch(self, mode: str, live: int, bucket: int, round_: int) -> Callable[[int], Any]:
        """What enqueues the step of a number."""
        model = self._model
        if mode == "local":
            return lambda i: model.launch_local(i, model.rows(live, i))
        return lambda i: model.launch_spread(bucket, round_, i, model.rows(live, i))

    def _header(self) -> list[int]:
        header: list[int] = self._model.exchange.header.tolist()
        return header


if __name__ == "__main__":
    serve(SpreadMember)
