"""``python -m bench.filters``: what top_k, top_p and min_p cost a decode step, on one GPU.

For each number of rows and each filter: µs to find the lowest logits that are kept, by the kernels
and by sorting all ids. Logits are normally distributed: with a standard deviation of 1 top_p keeps
most ids, with 5 a few, as with real models.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.recording import Recording
from bench.timed_steps import graph_ms
from engine.kernels.sampling import torch_sampling
from engine.kernels.sampling.triton_long_threshold import lowest_kept_of_all
from engine.kernels.sampling.triton_threshold import ThresholdWorkspace, lowest_kept

ROWS = 1, 16, 64
FILTERS: dict[str, tuple[int, float]] = {
    "top_k 20, top_p 0.95": (20, 0.95),
    "top_p 0.9": (0, 0.9),
    "top_k 100, top_p 0.9": (100, 0.9),
}
TEMPERATURE = 0.7
REPLAYS = 20
ROUNDING = 1e-4
"""Share of a row's kept ids that may differ: the two add up other roundings."""


def by_kernels(logits: torch.Tensor, top_k: int, top_p: float) -> Callable[[], torch.Tensor]:
    """As cuda_sampler.py finds them."""
    num_rows, num_ids = logits.shape
    each = partial(torch.full, (num_rows,), device=logits.device)
    slots, lowest = torch.arange(num_rows, device=logits.device), each(0.0)
    args = logits, num_ids, each(TEMPERATURE), each(top_k), each(top_p), each(0.0), slots
    if 0 < top_k <= torch_sampling.SHORT_TOP_K:
        workspace = ThresholdWorkspace.allocate(num_rows, num_ids, logits.device)
        return partial(lowest_kept, *args, workspace)

    def of_all() -> torch.Tensor:
        lowest_kept_of_all(*args, slots, lowest, any_top_k=top_k > 0)
        return lowest

    return of_all


def by_sorting(logits: torch.Tensor, top_k: int, top_p: float) -> Callable[[], torch.Tensor]:
    each = partial(torch.full, (len(logits),), device=logits.device)
    settings = each(top_k), each(top_p), each(0.0)
    return lambda: torch_sampling.threshold(logits / TEMPERATURE, *settings, short=False)


def main(
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("filters.json"),
    ids: Annotated[int, typer.Option(min=1, help="Ids of the vocabulary.")] = 248_077,
) -> None:
    run = Recording("bench.filters", out, {"ids": ids, "temperature": TEMPERATURE})
    torch.manual_seed(0)
    for deviation in (1.0, 5.0):
        for num_rows in ROWS:
            logits = deviation * torch.randn(num_rows, ids, device="cuda")
            for name, settings in FILTERS.items():
                row: dict[str, Any] = {"deviation": deviation, "rows": num_rows, "filter": name}
                ways = [find(logits, *settings) for find in (by_kernels, by_sorting)]
                kept, wanted = ((logits / TEMPERATURE >= w().unsqueeze(1)).sum(1) for w in ways)
                row["kept"] = int(wanted.float().mean())
                row["differ"] = float(((kept - wanted).abs() / wanted).max())
                row["us"], row["sorting_us"] = (1e3 * graph_ms(w, REPLAYS) for w in ways)
                run.add("filters", row)
                if row["differ"] > ROUNDING:
                    run.problems.append(f"other ids are kept: {row}")
    run.end()


if __name__ == "__main__":
    typer.run(main)
