"""Time the filters of sampling at the model's vocabulary: two kernels beside plain PyTorch.

    python -m bench.kernels_sampling [--out FILE]

For 1 to 64 rows with Qwen's defaults (top_k 20, top_p 0.95), a JSON line for each variant:

    us           of one call, replayed from a CUDA graph that goes through four steps' logits
    gb_s         logits read per second;  x_floor: how many times reading them once at 4.3 TB/s
    enqueue_us   of the host's time to enqueue one call outside a graph
    wrong_rows   of which the result is not torch_sampling.threshold's, bit for bit

``torch`` is that function with settings from tables on the device, ``TILExWARPS`` the kernels.
Exit status 1 when a row was wrong or a variant failed. --out also writes the lines to a file,
after one that says where they are from.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import triton

from bench.environment import describe
from bench.kernel_timing import floor_s, seconds_per_call
from bench.kernels_mixer import NUM_IDS, VALID_IDS
from engine.kernels import torch_sampling
from engine.kernels.triton_threshold import TILE, ThresholdWorkspace, lowest_kept

ROWS = (1, 2, 4, 8, 16, 32, 64)
NUM_CALLS, NUM_WARPS = 4, 4
Call = Callable[[], torch.Tensor]


class Settings:
    """Tables of 64 state slots in the sampler's layout, and the slots of a step's rows."""

    def __init__(self) -> None:
        self.floats = torch.zeros(ROWS[-1], 6, device="cuda")
        self.ints = torch.zeros(ROWS[-1], 4, dtype=torch.int64, device="cuda")
        self.floats[:, 0], self.floats[:, 1], self.ints[:, 1] = 1.0, 0.95, 20
        self.slots = torch.randperm(ROWS[-1], device="cuda")

    def kernels(self, logits: torch.Tensor, workspace: ThresholdWorkspace) -> torch.Tensor:
        floats, ints, slots = self.floats, self.ints, self.slots[: len(logits)]
        return lowest_kept(
            logits, VALID_IDS, floats[:, 0], ints[:, 1], floats[:, 1], floats[:, 2], slots,
            workspace, tile=TILE, num_warps=NUM_WARPS,
        )  # fmt: skip

    def pytorch(self, logits: torch.Tensor) -> torch.Tensor:
        slots = self.slots[: len(logits)]
        floats, ints = self.floats.index_select(0, slots), self.ints.index_select(0, slots)
        scaled = logits[:, :VALID_IDS] / floats[:, 0].unsqueeze(1)
        return torch_sampling.threshold(scaled, ints[:, 1], floats[:, 1], floats[:, 2], short=True)


def measured(calls: list[Call], num_bytes: float) -> dict[str, float]:
    seconds = seconds_per_call(calls)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(5):
        for call in calls:
            call()
    enqueued = (time.perf_counter() - began) / (5 * len(calls))
    torch.cuda.synchronize()
    return {
        "us": round(seconds * 1e6, 2),
        "gb_s": round(num_bytes / seconds / 1e9, 1),
        "x_floor": round(seconds / floor_s(num_bytes), 2),
        "enqueue_us": round(enqueued * 1e6, 1),
    }


def lines() -> Iterator[dict[str, object]]:
    settings = Settings()
    for num_rows in ROWS:
        logits = [3 * torch.randn(num_rows, NUM_IDS, device="cuda") for _ in range(NUM_CALLS)]
        truth = [settings.pytorch(each) for each in logits]
        workspace = ThresholdWorkspace.allocate(
            num_rows, VALID_IDS, torch.device("cuda"), tile=TILE
        )
        variants: dict[str, list[Call]] = {
            "torch": [partial(settings.pytorch, each) for each in logits],
            f"{TILE}x{NUM_WARPS}": [partial(settings.kernels, each, workspace) for each in logits],
        }
        for name, calls in variants.items():
            case: dict[str, object] = {
                "kernel": "lowest_kept", "case": f"B={num_rows} {logits[0].dtype}", "variant": name,
            }  # fmt: skip
            try:
                same = [call() == true for call, true in zip(calls, truth, strict=True)]
                case |= measured(calls, float(num_rows * VALID_IDS * logits[0].itemsize))
                case["wrong_rows"] = int((~torch.cat(same)).sum())
            except Exception as error:
                case["error"] = repr(error)[:300]
            yield case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the JSON lines go as well")
    args = parser.parse_args()
    torch.manual_seed(0)
    where = {
        **describe(sys.argv[1:], "bench.kernels_sampling"),
        "triton": triton.__version__,
    }
    printed, wrong = [json.dumps(where)], 0
    for line in lines():
        printed.append(json.dumps(line))
        wrong += line.get("wrong_rows") != 0
        print(printed[-1], flush=True)
    if args.out is not None:
        args.out.write_text("\n".join(printed) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
