"""Attention in pieces: against plain PyTorch, with a stand-in for cuDNN where there is no GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import warm_up
from engine.config import EngineConfig
from engine.cuda_parts import CudaParts
from engine.kernels.attention import attention_pieces, cudnn_attention, triton_attention_prefill
from engine.kernels.attention.attention_pieces import (
    CHUNK_LENS,
    KEYS,
    LIBRARY,
    LONGEST_PIECE,
    LONGEST_TAIL,
    QUERIES,
    chunks_of,
    equal_pieces_of,
    one_chunk_of,
    pieces_of,
)
from engine.kernels.attention.triton_attention_pieces import DeepRows, attention_in_pieces
from engine.kernels.attention.unmasked import Unmasked
from engine.kernels.batch.triton_prefill_plan import PrefillPlan
from engine.kernels.triton_dot import INTERPRETED
from engine.kernels.triton_set import TritonKernels
from engine.model.layers import Attention
from engine.model.registry import read_config
from engine.runner import Engine
from tests.kernels.attention.test_attention import BOUND, DIM, HEADS, KV_HEADS, LAYER, PAGE, Cache
from tests.kernels.closeness import relative_error
from tests.kernels.sets import cuda_path

GROUP = HEADS // KV_HEADS


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q.float() @ k.float().transpose(1, 2) * q.shape[-1] ** -0.5
    return (scores.softmax(-1) @ v.float()).to(q.dtype)[None], scores.logsumexp(-1)[None]


@pytest.mark.parametrize("heads_at_once", [GROUP, GROUP // 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_behind_contexts_of_several_pieces(
    dtype: torch.dtype, heads_at_once: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_attention_prefill, "MAX_TILE", 8 * heads_at_once * DIM)
    monkeypatch.setattr(attention_pieces, "PIECE_LENS", (4 * PAGE, PAGE))
    monkeypatch.setattr(attention_pieces, "CHUNK_LENS", (16, 8))
    monkeypatch.setattr(attention_pieces, "LONGEST_TAIL", 4)
    cut = replace(LIBRARY, least_cached=PAGE, least_new=9, least_pairs=9 * PAGE)
    cache = Cache([PAGE, 2 * PAGE, 6 * PAGE + 3, 0, 4 * PAGE], [39, 8, 9, 21, 18], dtype, device)
    truth, _, _ = cache.truth()
    plan = PrefillPlan.of(cache.rows.starts, cache.rows.lens, device, tile_len=8)
    q = cache.roped(plan)
    rows = DeepRows.of(cache.rows.starts, cache.rows.lens, cut, device)
    assert [len(pieces) for pieces in rows.pieces] == [1, 0, 3, 0, 1]
    tables = cache.rows.block_tables
    out = attention_in_pieces(
        q, cache.gate, cache.kv, LAYER, tables, plan, rows, Unmasked("", cut, attend)
    )
    # What a piece gives is rounded once more.
    assert relative_error(out, truth) < 1.5 * BOUND[dtype]


@given(st.integers(0, 300_000), st.integers(1, 10_000))
def test_pieces_and_chunks_cover_each_token_once(start: int, num_new: int) -> None:
    pieces, chunks = pieces_of(start), chunks_of(num_new)
    ends = [0, *(piece.first + piece.length for piece in pieces)]
    assert [piece.first for piece in pieces] == ends[:-1]
    assert 0 <= start - ends[-1] < 8_192
    ends = [0, *(chunk.first + chunk.length for chunk in chunks)]
    assert [chunk.first for chunk in chunks] == ends[:-1]
    assert 0 <= num_new - ends[-1] <= LONGEST_TAIL
    assert all(chunk.padded in CHUNK_LENS and chunk.length <= chunk.padded for chunk in chunks)


@given(st.integers(8_192, 300_000), st.integers(1, 10_000))
def test_equal_pieces_leave_less_than_a_tile(start: int, num_new: int) -> None:
    pieces, (chunk,) = equal_pieces_of(start), one_chunk_of(num_new)
    ends = [0, *(piece.first + piece.length for piece in pieces)]
    assert [piece.first for piece in pieces] == ends[:-1]
    assert start - ends[-1] < KEYS
    lengths = {piece.length for piece in pieces}
    assert max(lengths) - min(lengths) <= KEYS
    assert max(lengths) <= LONGEST_PIECE
    assert all(length % KEYS == 0 for length in lengths)
    assert chunk.length == num_new <= chunk.padded < num_new + QUERIES
    assert chunk.padded % QUERIES == 0


def test_short_rows_and_shallow_contexts_are_computed_whole() -> None:
    assert LIBRARY.suits([57_600], [6_400])
    assert LIBRARY.suits([57_600, 8_192], [1_024, 8_192])
    assert LIBRARY.suits([57_600, 8_192], [1_024, 1_000]), "a short row beside a deep one"
    assert not LIBRARY.suits([57_600, 8_191], [1_024, 1_800]), "other rows have too many pairs"
    assert not LIBRARY.suits([57_600, 8_191], [6_400, 8_192])
    assert not LIBRARY.suits([57_600], [1_023])
    assert not LIBRARY.suits([0] * 64, [1_024] * 64)
    assert not LIBRARY.suits([], [])


def test_why_it_does_not_serve_is_said() -> None:
    assert "bfloat16" in cudnn_attention.unsupported(torch.float32, 256)
    assert "heads of 256" in cudnn_attention.unsupported(torch.bfloat16, 128)
    if not torch.cuda.is_available():
        assert "Hopper" in cudnn_attention.unsupported(torch.bfloat16, 256)


@pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter")
@pytest.mark.parametrize("refuses", [False, True])
def test_triton_computes_what_cudnn_refuses_to_plan(
    refuses: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    num_planned = 0

    def planned(*of: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal num_planned
        num_planned += 1
        if refuses:
            raise RuntimeError("no execution plan")
        return attend(*of)

    cuda_path.write_config(tmp_path)
    config = read_config(tmp_path)
    monkeypatch.setattr(attention_pieces, "PIECE_LENS", (4 * PAGE, 2 * PAGE))
    monkeypatch.setattr(attention_pieces, "CHUNK_LENS", (16, 8))
    monkeypatch.setattr(attention_pieces, "LONGEST_TAIL", 4)
    cut = replace(
        LIBRARY, least_cached=PAGE, least_new=8, least_pairs=8 * PAGE, deepest=(6 * PAGE, 25)
    )
    kernels = TritonKernels(config, torch.device("cpu"), 4)
    kernels.unmasked, kernels.pieces_problem = Unmasked("cuDNN", cut, planned), ""
    shape = config.attention.num_key_value_heads, config.attention.head_dim
    kernels.plan_pieces(torch.ones(1, 1, 2, PAGE, *shape, dtype=torch.bfloat16))
    assert num_planned == (1 if refuses else 4)
    assert ("no execution plan" in kernels.pieces_problem) == refuses
    assert ("no execution plan" in caplog.text) == refuses


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gated": False}, "gated attention"),
        ({"window": 64}, "to all tokens"),
        ({"scale": 0.5}, "the default scale"),
        ({"num_attention_heads": 6}, "3 heads per KV head"),
    ],
)
def test_attention_that_pieces_do_not_compute_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
) -> None:
    monkeypatch.setattr(cudnn_attention, "unsupported", lambda *_: "")
    cuda_path.write_config(tmp_path, num_attention_heads=4, num_key_value_heads=2)
    config = read_config(tmp_path)
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, **change))
        if isinstance(layer.mixer, Attention)
        else layer
        for layer in config.layers
    )
    assert TritonKernels(config, torch.device("cpu"), 4).pieces_problem == ""
    kernels = TritonKernels(replace(config, layers=layers), torch.device("cpu"), 4)
    assert named in kernels.pieces_problem


@pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter")
def test_a_worker_that_only_decodes_makes_plans_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It computes prompts when no prefill worker is left."""
    planned = list[torch.Tensor]()
    monkeypatch.setattr(TritonKernels, "plan_pieces", lambda self, kv: planned.append(kv))
    monkeypatch.setattr(warm_up, "batches", lambda *_, decodes: iter(()))
    cuda_path.on_the_cpu(monkeypatch)
    cuda_path.write_config(tmp_path)
    settings = EngineConfig(tmp_path, 2, 1, load_format="dummy", dtype="float32", prefills=False)
    kernels = TritonKernels(read_config(tmp_path), torch.device("cpu"), 4)
    engine = Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8), kernels=kernels)
    engine._cuda = CudaParts(
        replace(settings, device="cuda"), engine._model, engine.cache, engine.layout, kernels,
        engine.num_ids, 0, None,
    )  # fmt: skip
    engine.warm_up()
    assert not planned, kernels.pieces_problem
    kernels.pieces_problem = ""
    caplog.set_level("INFO")
    engine.warm_up()
    assert [kv.data_ptr() for kv in planned] == [engine.cache.kv.data_ptr()]
    assert "attention to deep contexts was prepared in" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(
    bool(cudnn_attention.unsupported(torch.bfloat16, 256)), reason="needs cuDNN on Hopper"
)
def test_cudnn_attends_as_the_stand_in_does() -> None:
    for queries, keys in ((1_024 * 8, 8_192), (2_048 * 8, 8_192)):
        q = torch.randn(2, queries, 256, dtype=torch.bfloat16, device="cuda")
        k, v = torch.randn(2, keys, 2, 256, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
        out, sums = cudnn_attention.attend(q, k, v)
        for some in (slice(0, 256), slice(queries - 256, queries)):
            truth, true_sums = attend(q[:, some], k, v)
            assert relative_error(out[:, :, some], truth) < 8e-3
            assert torch.allclose(sums[:, :, some], true_sums, atol=2e-3)
