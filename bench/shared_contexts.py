"""``python -m bench.shared_contexts``: decode attention of rows that have pages in common.

Sequences begin with the same tokens, or have several tokens in a step (drafts). For each shape: µs
of one layer's attention when each row reads its whole context, and when rows read together what
they have in common; the bits must be equal.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bench.recording import Recording
from bench.timed_steps import graph_ms
from engine.batch import Row
from engine.kernels.shared_reads import SharedReads, rows_of_tile
from engine.kernels.triton_attention_decode import AttentionWorkspace, attention_decode
from engine.shared_pages import SharedPages
from transport.wire.layout import CacheLayout

HEADS, KV_HEADS, DIM, PAGE, LAYERS = 16, 2, 256, 64, 10
REPLAYS = 20
LAYOUT = CacheLayout(
    kv_dtype="bfloat16", page_size=PAGE, num_attention_layers=LAYERS, num_kv_heads=KV_HEADS,
    head_dim=DIM, num_deltanet_layers=0, num_v_heads=0, k_dim=0, v_dim=0, conv_channels=0,
    conv_state_len=0,
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """``sequences`` with ``shared`` tokens in common and ``own`` more of each, and ``tokens`` of
    each in a step."""

    sequences: int
    shared: int
    own: int
    tokens: int = 1


SHAPES = (
    Shape(2, 0, 1_024), Shape(16, 0, 1_024), Shape(64, 0, 1_024), Shape(64, 0, 8_192),
    Shape(4, 0, 64_000), Shape(64, 1_024, 1_024), Shape(8, 57_600, 6_400),
    Shape(32, 57_600, 6_400), Shape(64, 57_600, 6_400), Shape(32, 8_192, 8_192),
    Shape(1, 0, 1_024, 4), Shape(16, 0, 1_024, 4), Shape(64, 0, 1_024, 4), Shape(1, 0, 64_000, 4),
    Shape(8, 0, 64_000, 4), Shape(32, 57_600, 6_400, 4),
)  # fmt: skip


def tables_of(shape: Shape) -> list[list[int]]:
    """Pages of each sequence, at random places in the pool."""
    common, own = shape.shared // PAGE, -(-(shape.own + shape.tokens) // PAGE)
    pages = torch.randperm(common + shape.sequences * own).tolist()
    return [
        [*pages[:common], *pages[common + i * own : common + (i + 1) * own]]
        for i in range(shape.sequences)
    ]


def timed(shape: Shape) -> dict[str, Any]:
    device, tables = torch.device("cuda"), tables_of(shape)
    num_rows, end = shape.sequences * shape.tokens, shape.shared + shape.own
    num_pages = 1 + max(map(max, tables))
    kv = torch.randn(num_pages, LAYERS, 2, PAGE, KV_HEADS, DIM, device=device, dtype=torch.bfloat16)
    q = torch.randn(num_rows, HEADS, DIM, device=device).bfloat16()
    gate = torch.randn(num_rows, HEADS * DIM, device=device).bfloat16()
    of_rows = torch.tensor([t for t in tables for _ in range(shape.tokens)], device=device).int()
    ends_each = torch.arange(end + 1, end + 1 + shape.tokens, device=device)
    ends = ends_each.repeat(shape.sequences).int()
    workspace = AttentionWorkspace.allocate(num_rows, HEADS, DIM, device)
    pages = SharedPages(LAYOUT, rows_of_tile(HEADS, KV_HEADS), num_rows, device)
    pages.write([Row(i, table, end, None) for i, table in enumerate(tables)], shape.tokens)

    def attend(layer: int, shared: SharedReads | None) -> torch.Tensor:
        return attention_decode(q, gate, kv, layer, of_rows, ends, workspace, shared=shared)

    def all_layers(shared: SharedReads | None) -> None:
        for layer in range(LAYERS):
            attend(layer, shared)

    found: dict[str, Any] = {**vars(shape)}
    outs = list[torch.Tensor]()
    for name, shared in (("apart_us", None), ("shared_us", pages.reads)):
        outs.append(attend(0, shared))
        found[name] = round(1e3 * graph_ms(partial(all_layers, shared), REPLAYS) / LAYERS, 1)
    found["equal"] = torch.equal(*outs)
    return found


def main(
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("shared-contexts.json"),
) -> None:
    settings = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "page_size": PAGE}
    run = Recording("bench.shared_contexts", out, settings)
    torch.manual_seed(0)
    for shape in SHAPES:
        run.add("shapes", found := timed(shape))
        if not found["equal"]:
            run.problems.append(f"bits differ: {found}")
    run.end()


if __name__ == "__main__":
    typer.run(main)
